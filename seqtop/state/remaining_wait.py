"""An estimate of the remaining wait of a request in the queue, from the recent admissions.

It repeats the past: if so many requests are ahead, the times in which as many were admitted, one
after the other, say how long that may take. It is no promise: nothing is known of what the requests
ahead need, nor of who arrives before them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

from seqtop.text import format as fmt

_LEAST_ADMISSIONS = 4
"""The admissions from which on there is a rate."""
_LEAST_REPEATS = 3
"""From so many times that as many requests were admitted, their range is that of the estimate."""
_DEVIATIONS = 2.0
_SHORTEST_SILENCE = 1.0
"""Seconds without an admission up to which the rate is known, whatever the gaps before were."""


class RemainingWait(msgspec.Struct, frozen=True):
    """The time until a request is admitted, in seconds."""

    num_ahead: int
    num_admitted: int
    """The recent admissions."""
    seconds: float | None = None
    """`None` if no rate is known."""
    low: float = 0.0
    high: float = 0.0
    reason: str = ""
    """The reason why no rate is known, in a few words."""


def remaining_wait(num_ahead: int, admissions: Sequence[float], now: float) -> RemainingWait:
    """Estimates how long it takes until a request is admitted.

    Args:
        num_ahead: The requests before it in the queue.
        admissions: The times of the recent admissions, epoch seconds, in any order.
        now: The present time, epoch seconds.
    """
    times = sorted(time for time in admissions if time <= now)
    count, needed = len(times), num_ahead + 1
    if count < _LEAST_ADMISSIONS:
        few = fmt.plural(count, "admission") if count else "no admission"
        return RemainingWait(num_ahead, count, reason=f"{few} in the last minute")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    silence = now - times[-1]
    num_longer = sum(gap > silence for gap in gaps)
    if silence > _SHORTEST_SILENCE and num_longer < _LEAST_REPEATS:
        reason = f"no admission for {fmt.seconds(silence)}, longer than usual"
        return RemainingWait(num_ahead, count, reason=reason)
    repeats = [later - earlier for earlier, later in zip(times, times[needed:], strict=False)]
    # The present one has taken the time since the last admission already.
    left = [seconds - silence for seconds in repeats if seconds > silence]
    if len(left) >= _LEAST_REPEATS:
        return RemainingWait(num_ahead, count, statistics.median(left), min(left), max(left))
    # The rate has the time since the last admission in it.
    rate = count / (now - times[0]) if now > times[0] else math.inf
    error = _DEVIATIONS / math.sqrt(count)
    high = needed / rate / (1 - error) if error < 1 else math.inf
    return RemainingWait(num_ahead, count, needed / rate, needed / rate / (1 + error), high)


def describe(estimate: RemainingWait) -> str:
    """Describes an estimate in a sentence."""
    ahead = fmt.plural(estimate.num_ahead, "sequence")
    if estimate.seconds is None:
        return f"{ahead} ahead; the remaining wait is not known: {estimate.reason}."
    most = "more" if math.isinf(estimate.high) else fmt.seconds(estimate.high)
    return (
        f"{ahead} ahead; remaining wait ~{fmt.seconds(estimate.seconds)}"
        f" ({fmt.seconds(estimate.low)} to {most}), estimated from"
        f" {fmt.plural(estimate.num_admitted, 'admission')} in the last minute."
    )
