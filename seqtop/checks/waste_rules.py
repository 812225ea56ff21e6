"""Rules on work that an engine does in vain: tokens computed again, and steps without a token.

Both are shares of a window of the engine's time, so that a short moment finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqtop.checks.finding import Finding
from seqtop.checks.outside_waits import OutsideWaits
from seqtop.checks.rules import RuleGroup, rule
from seqtop.checks.thresholds import Thresholds
from seqtop.state import EngineState
from seqtop.text import format as fmt
from seqtop.wire.messages import EngineInfo, Event, RequestArrived, Step

_LEAST_PREEMPTIONS = 8
"""The preemptions of a window below which it is not judged."""
_LEAST_PROMPTS = 20
"""The prompts after which a prefix cache is judged."""


class WasteRules(RuleGroup):
    """Rules on the shares of work and time that are wasted.

    Args:
        state: The state of the engine.
        thresholds: The shares from which on there is a finding, and the length of a window.
        outside: The waits for something other than a turn, in which steps are rightly empty.
    """

    def __init__(self, state: EngineState, thresholds: Thresholds, outside: OutsideWaits) -> None:
        super().__init__(state)
        self._limits = thresholds
        self._outside = outside
        self._is_thrashing = self._is_empty = False
        """True if the present incident has been reported."""
        self._prompts: set[str] = set()
        """The first requests."""
        self._longest_prompt = 0
        self._restart(state.time)

    def _restart(self, time: float) -> None:
        self._since = time
        self._last = time
        self._num_tokens = self._num_lost = self._num_found = self._num_preemptions = 0
        self._num_steps = self._num_empty = 0
        self._seconds_empty = 0.0

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Adds a step to the window, and judges a window that is long enough."""
        match event:
            case EngineInfo():
                self._restart(self.state.time)
                self._prompts, self._longest_prompt = set(), 0
            case RequestArrived():
                yield from self._cache_in_vain(event)
            case Step():
                self._add(event)
                if event.time - self._since >= self._limits.window_seconds:
                    yield from self._recomputes()
                    yield from self._empty_steps()
                    self._restart(event.time)

    def _add(self, step: Step) -> None:
        if not self._num_steps:
            self._since = self._last = min(step.start_time, max(self._last, self._since))
        num_tokens = step.stats.num_prefill_tokens + step.stats.num_decode_tokens
        self._num_steps += 1
        self._num_tokens += num_tokens
        self._num_preemptions += len(step.preemptions)
        self._num_lost += sum(max(own.num_lost_tokens, 0) for own in step.preemptions)
        for update in step.sequences if step.stats.num_preemptions else ():
            if update.num_cached_tokens:
                sequence = self.state.sequences.get(update.seq_id)
                request = self.state.requests.get(sequence.request_id) if sequence else None
                if request is not None and request.num_preemptions:
                    self._num_found += update.num_cached_tokens
        waits = step.stats.num_waiting + step.stats.num_running > 0
        if not num_tokens and waits and not self._outside.lasts():
            self._num_empty += 1
            self._seconds_empty += max(step.time - self._last, 0.0)
        self._last = max(step.time, self._last)

    @rule("recomputes", "much of what is computed was lost to preemptions before", "warning")
    def _recomputes(self) -> Iterator[Finding]:
        all_ = self._num_tokens
        # Tokens that the prefix cache still has are not computed again.
        again = min(max(self._num_lost - self._num_found, 0), all_)
        is_much = (
            self._num_preemptions >= _LEAST_PREEMPTIONS
            and again >= self._limits.recomputed_share * all_
        )
        is_new, self._is_thrashing = is_much and not self._is_thrashing, is_much
        if is_new:
            yield self.of_engine(
                f"{fmt.percent(again, all_)} of {all_:,} tokens in {self._length()} replace"
                f" {again:,} that {self._num_preemptions:,} preemptions lost: more requests run"
                " than the pool has blocks for"
            )

    @rule("empty-steps", "steps compute nothing while requests wait that could run", "warning")
    def _empty_steps(self) -> Iterator[Finding]:
        length = self._last - self._since
        is_much = (
            self._num_tokens > 0
            and self._num_empty >= self._limits.no_progress_steps / 2
            and self._seconds_empty >= self._limits.empty_share * length
        )
        is_new, self._is_empty = is_much and not self._is_empty, is_much
        if is_new:
            yield self.of_engine(
                f"{self._num_empty:,} of {self._num_steps:,} steps in {self._length()} computed"
                f" nothing, {fmt.percent(self._seconds_empty, length)} of the time, with"
                f" {self.state.stats.num_waiting if self.state.stats else 0:,} waiting at the end"
            )

    @rule("cache-in-vain", "no prompt is long enough for a hit in the prefix cache", "warning")
    def _cache_in_vain(self, arrival: RequestArrived) -> Iterator[Finding]:
        info = self.state.info
        if info is None or not info.enable_prefix_caching or info.block_size < 2:
            return
        if len(self._prompts) == _LEAST_PROMPTS or arrival.request_id in self._prompts:
            return
        self._prompts.add(arrival.request_id)
        self._longest_prompt = max(self._longest_prompt, arrival.num_prompt_tokens)
        # A hit has to leave a token to compute.
        if len(self._prompts) == _LEAST_PROMPTS and self._longest_prompt <= info.block_size:
            yield self.of_engine(
                f"the longest of {_LEAST_PROMPTS} prompts has {self._longest_prompt:,} tokens,"
                f" and the prefix cache finds only whole blocks of {info.block_size:,} tokens"
            )

    def _length(self) -> str:
        return fmt.seconds(self._last - self._since)
