"""Conditions on a moment: words of the filter language, and words on the engine.

    kv>95%                       the share of the KV pool that is in block tables
    waiting>=10 running<4        numbers of sequences after the last step
    status:preempt request:x     a sequence matches this filter
    kv>95% prompt>10k            both

A condition holds at a moment if all words on the engine do and, where there are others, at least
one sequence matches all of those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from seqtop.sequence import SequenceStatus
from seqtop.state.filter import Filter, FilterError, number_test, parse, quantity, share
from seqtop.state.filter import words as words_of
from seqtop.state.model import EngineData
from seqtop.wire.messages import (
    EngineInfo,
    EngineSummary,
    Event,
    StepStats,
    StreamingUpdate,
)

ENGINE: Final = -1
"""Stands for the engine among the ids of matching sequences."""


class EngineField(NamedTuple):
    """A figure of the engine after its last step."""

    help: str
    value: Callable[[StepStats | EngineSummary, EngineInfo | EngineSummary], float | None]
    is_share: bool = False


def kv_use(stats: StepStats | EngineSummary, info: EngineInfo | EngineSummary) -> float | None:
    """Returns the share of the device's KV blocks that sequences hold, from 0 to 1."""
    if info.num_gpu_blocks <= 0 or stats.num_used_blocks is None:
        return None
    return min(max(stats.num_used_blocks / info.num_gpu_blocks, 0.0), 1.0)


ENGINE_FIELDS = {
    "kv": EngineField("share of the KV pool in block tables", kv_use, is_share=True),
    "running": EngineField("running sequences", lambda stats, _: stats.num_running),
    "waiting": EngineField("waiting sequences", lambda stats, _: stats.num_waiting),
    "swapped": EngineField("swapped sequences", lambda stats, _: stats.num_swapped),
    "free": EngineField("blocks without content", lambda stats, _: stats.num_free_blocks),
    "prefill": EngineField("prompt tokens in the step", lambda stats, _: stats.num_prefill_tokens),
    "decode": EngineField("decode tokens in the step", lambda stats, _: stats.num_decode_tokens),
    "preemptions": EngineField(
        "preemptions since the engine started", lambda stats, _: stats.num_preemptions
    ),
}
"""The figures of the engine that a condition can name."""


@dataclass(frozen=True)
class Condition:
    """A parsed condition."""

    source: str
    filter: Filter | None
    """The filter that a sequence has to match; `None` if there are only words on the engine."""
    tests: tuple[Callable[[EngineData], bool], ...] = ()
    """The tests of the engine."""
    engine_fields: tuple[str, ...] = ()
    """The keys of `ENGINE_FIELDS` that the tests read."""

    def holds_for_engine(self, state: EngineData) -> bool:
        """Returns whether all words on the engine hold."""
        return all(test(state) for test in self.tests)

    def matches(self, state: EngineData, seq_id: int) -> bool:
        """Returns whether a sequence of `state`, if it is there, matches the filter."""
        sequence = state.sequences.get(seq_id)
        if sequence is None or self.filter is None:
            return False
        return self.filter.matches(state.requests[sequence.request_id], sequence, state.time)


class ConditionTracker:
    """The sequences that match a condition while a state changes, and whether it holds.

    Args:
        condition: The condition; its filter is used by this object only.
    """

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.matching: set[int] = set()
        """The sequences that match the filter, or `ENGINE` without one."""
        self.began: list[int] = []
        """The sequences that began to match at the last `replace` or `update`."""
        self.holds = False
        self._unfinished: set[int] = set()
        """The sequences whose fields may grow with time, if the filter has such a field."""

    def clear(self) -> None:
        """Forgets all that matched."""
        self.matching.clear()
        self.holds = False

    def replace(self, state: EngineData) -> int | None:
        """Reads another state; returns as `update` does, of the sequences that did not match."""
        if self.condition.filter is not None:
            self.condition.filter.reset()
        self.matching &= {ENGINE, *state.sequences}
        self._unfinished.clear()
        return self._update(state, state.sequences)

    def update(self, state: EngineData, event: Event, touched: Iterable[int]) -> int | None:
        """Reads a state after an event.

        Returns:
            A sequence that begins to match, or any that matches if the words on the engine begin to
            hold, or `ENGINE` without a filter; `None` if the condition does not hold, or nothing
            begins to.
        """
        if isinstance(event, StreamingUpdate) and self.condition.filter is not None:
            for seq_id in touched:
                self.condition.filter.reset(seq_id)
        return self._update(state, touched)

    def _update(self, state: EngineData, touched: Iterable[int]) -> int | None:
        condition, matching, began = self.condition, self.matching, self.began
        began.clear()
        if condition.filter is None:
            matching.add(ENGINE)
        else:
            for seq_id in self._growing(state, touched) if condition.filter.grows else touched:
                if not condition.matches(state, seq_id):
                    matching.discard(seq_id)
                elif seq_id not in matching:
                    matching.add(seq_id)
                    began.append(seq_id)
        held, self.holds = self.holds, bool(matching) and condition.holds_for_engine(state)
        if not self.holds:
            return None
        if not held:
            return min(matching)
        return began[0] if began else None

    def _growing(self, state: EngineData, touched: Iterable[int]) -> list[int]:
        """Returns the sequences that may match otherwise than before, as time has passed."""
        found = dict.fromkeys(touched)
        for seq_id in found:
            sequence = state.sequences.get(seq_id)
            if sequence is None or SequenceStatus.is_finished(sequence.status):
                self._unfinished.discard(seq_id)
            else:
                self._unfinished.add(seq_id)
        return [*(found | dict.fromkeys(self._unfinished))]


def parse_condition(source: str) -> Condition:
    """Parses a condition that a user typed.

    Raises:
        FilterError: It is empty, a field or a unit is unknown, or a word is invalid.
    """
    tests: list[Callable[[EngineData], bool]] = []
    fields: list[str] = []
    others: list[str] = []
    for word in words_of(source, ENGINE_FIELDS):
        name = (word["field"] or "").lower()
        if name in ENGINE_FIELDS:
            tests.append(engine_test(word))
            fields.append(name)
        else:
            others.append(word[0])
    if not tests and not others:
        raise FilterError("a condition is needed, such as kv>95% or status:preempt")
    filter_ = parse(" ".join(others)) if others else None
    return Condition(source.strip(), filter_, tuple(tests), tuple(fields))


def engine_test(word: re.Match[str]) -> Callable[[EngineData], bool]:
    """Returns the test of a state, of a word whose field is one of `ENGINE_FIELDS`.

    Raises:
        FilterError: It compares with no number.
    """
    test = _figures_test(word)
    return lambda state: (
        state.stats is not None and state.info is not None and test(state.stats, state.info)
    )


def summary_test(word: re.Match[str]) -> Callable[[EngineSummary], bool]:
    """Returns the test of a summary, of a word whose field is one of `ENGINE_FIELDS`.

    Raises:
        FilterError: It compares with no number.
    """
    test = _figures_test(word)
    return lambda summary: test(summary, summary)


def _figures_test(
    word: re.Match[str],
) -> Callable[[StepStats | EngineSummary, EngineInfo | EngineSummary], bool]:
    """Returns the test of the figures of an engine.

    Raises:
        FilterError: It compares with no number.
    """
    name, is_negated = word["field"].lower(), bool(word["no"])
    wanted = (word["bare"] if word["text"] is None else word["text"]).rstrip(",")
    field = ENGINE_FIELDS[name]
    compare = number_test(name, word["op"], share(wanted) if field.is_share else quantity(wanted))

    def test(stats: StepStats | EngineSummary, info: EngineInfo | EngineSummary) -> bool:
        value = field.value(stats, info)
        return value is not None and compare(value) is not is_negated

    return test
