"""Rates of the engine: differences of the state's sums, sampled each second of engine time."""

import math
from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from seqtop.state import EngineState

INTERVAL = 1.0
"""Seconds between samples."""
HISTORY = 120
"""Samples that the sparklines show."""
MAX_SAMPLES = 36_000
"""The samples stored for time travel: ten hours."""


class Rates(NamedTuple):
    """Rates per second over the last interval; `None` before the first interval has passed."""

    steps: float | None = None
    tokens_in: float | None = None
    """Prompt tokens computed."""
    tokens_out: float | None = None
    """Tokens generated."""
    out_history: tuple[float, ...] = ()
    kv_history: tuple[float, ...] = ()
    """Share of the device's KV blocks in use."""


class RateSample(NamedTuple):
    """The rates over the interval that ended at `time`, and the use of the KV cache at its end."""

    time: float
    steps: float
    tokens_in: float
    tokens_out: float
    kv: float


class RateMeter:
    """Computes rates from the growing sums of an `EngineState`."""

    def __init__(self) -> None:
        self.rates = Rates()
        """The rates over the last interval."""
        self._last: tuple[float, int, int, int] | None = None
        self._samples: list[RateSample] = []

    def sample(self, state: EngineState) -> None:
        """Takes a sample of `state` if an interval has passed since the last one."""
        now = (state.time, state.num_steps_seen, state.num_prefill_tokens, state.num_output_tokens)
        if self._last is None or any(new < old for new, old in zip(now, self._last, strict=True)):
            # The first sample, or another or a restarted engine.
            self._last = now if state.time > 0 else None
            del self._samples[self._count_until(state.time) :]
            known = self.at(state.time)
            self.rates = Rates(out_history=known.out_history, kv_history=known.kv_history)
            return
        elapsed = now[0] - self._last[0]
        if elapsed < INTERVAL or not math.isfinite(elapsed):
            return
        steps, tokens_in, tokens_out = (
            (new - old) / elapsed for new, old in zip(now[1:], self._last[1:], strict=True)
        )
        self._last = now
        kv = kv_use(state) or 0.0
        if self._samples and self._samples[-1][1:] == (0.0, 0.0, 0.0, kv) == (
            steps,
            tokens_in,
            tokens_out,
            kv,
        ):
            return  # an idle engine: the sparklines stay as they are
        self._samples.append(RateSample(now[0], steps, tokens_in, tokens_out, kv))
        del self._samples[:-MAX_SAMPLES]
        self.rates = self.at(now[0])

    def at(self, time: float) -> Rates:
        """Returns the rates at `time`, in epoch seconds; unknown before the first sample."""
        count = self._count_until(time)
        if not count:
            return Rates()
        shown = self._samples[max(count - HISTORY, 0) : count]
        return Rates(
            *shown[-1][1:4],
            tuple(sample.tokens_out for sample in shown),
            tuple(sample.kv for sample in shown),
        )

    def _count_until(self, time: float) -> int:
        return bisect_right(self._samples, time, key=attrgetter("time"))


def kv_use(state: EngineState) -> float | None:
    """Returns the share of the device's KV blocks that sequences hold, from 0 to 1."""
    if state.stats is None or state.info is None or state.info.num_gpu_blocks <= 0:
        return None
    return min(max(state.stats.num_used_blocks / state.info.num_gpu_blocks, 0.0), 1.0)
