"""How fast the engine goes: sums of the state, sampled once a second of the engine's time."""

import math
from collections import deque
from typing import NamedTuple

from seqtop.state import EngineState

INTERVAL = 1.0
"""Seconds between samples."""
HISTORY = 120
"""Samples kept, for the sparklines."""


class Rates(NamedTuple):
    """Per second, over the last interval; `None` before there is one."""

    steps: float | None = None
    tokens_in: float | None = None
    """Prompt tokens computed."""
    tokens_out: float | None = None
    """Tokens generated."""
    out_history: tuple[float, ...] = ()
    kv_history: tuple[float, ...] = ()
    """Share of the device's KV blocks in use."""


class RateMeter:
    """Turns the growing sums of an `EngineState` into rates."""

    def __init__(self) -> None:
        self.rates = Rates()
        self._last: tuple[float, int, int, int] | None = None
        self._out: deque[float] = deque(maxlen=HISTORY)
        self._kv: deque[float] = deque(maxlen=HISTORY)

    def sample(self, state: EngineState) -> None:
        """Look at `state`, as often as one likes; takes a sample when an interval has passed."""
        now = (state.time, state.num_steps_seen, state.num_prefill_tokens, state.num_output_tokens)
        if self._last is None or any(new < old for new, old in zip(now, self._last, strict=True)):
            # The first look, or another engine (or a restarted one) in the old one's place.
            self._last = now if state.time > 0 else None
            self.rates = self.rates._replace(steps=None, tokens_in=None, tokens_out=None)
            return
        elapsed = now[0] - self._last[0]
        if elapsed < INTERVAL or not math.isfinite(elapsed):
            return
        steps, tokens_in, tokens_out = (
            (new - old) / elapsed for new, old in zip(now[1:], self._last[1:], strict=True)
        )
        self._last = now
        self._out.append(tokens_out)
        self._kv.append(kv_use(state) or 0.0)
        self.rates = Rates(steps, tokens_in, tokens_out, tuple(self._out), tuple(self._kv))


def kv_use(state: EngineState) -> float | None:
    """Share of the device's KV blocks that some sequence holds, from 0 to 1."""
    if state.stats is None or state.info is None or state.info.num_gpu_blocks <= 0:
        return None
    return min(max(state.stats.num_used_blocks / state.info.num_gpu_blocks, 0.0), 1.0)
