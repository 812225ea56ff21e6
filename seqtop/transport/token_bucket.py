"""Bounds on what a peer can make the other end spend."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """So much per second, and no more than `burst` at once; what is over has to wait.

    Args:
        rate: What is allowed per second.
        burst: What may be spent at once after a quiet time.
    """

    def __init__(
        self, rate: float, burst: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._looked_at = clock()

    def spend(self, amount: float) -> None:
        """Take `amount` away; may go below nothing, and then takes longer to come back."""
        self._left = self._now() - amount

    def seconds_to_go(self) -> float:
        """How long until something may be spent again; 0 if it may be now."""
        return max(0.0, -self._now() / self._rate)

    def _now(self) -> float:
        now = self._clock()
        self._left = min(self._burst, self._left + self._rate * (now - self._looked_at))
        self._looked_at = now
        return self._left
