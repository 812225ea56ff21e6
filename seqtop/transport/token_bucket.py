"""A token bucket that limits a rate."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Limits spending to a rate, with bursts.

    Args:
        rate: Tokens added per second.
        burst: The largest number of tokens the bucket holds.
        clock: Returns a monotonic time in seconds.
    """

    def __init__(
        self, rate: float, burst: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._refilled_at = clock()

    def spend(self, tokens: float) -> None:
        """Removes tokens. The balance may become negative, and then takes longer to recover."""
        self._refill()
        self._tokens -= tokens

    def seconds_until_available(self) -> float:
        """Returns the seconds until the balance is no longer negative; 0 if it is not."""
        self._refill()
        return max(0.0, -self._tokens / self._rate)

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + self._rate * (now - self._refilled_at))
        self._refilled_at = now
