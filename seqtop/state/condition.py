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
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from seqtop.state.filter import Filter, FilterError, number_test, parse, quantity, share
from seqtop.state.filter import words as words_of
from seqtop.state.model import EngineData
from seqtop.wire.messages import EngineInfo, StepStats


class EngineField(NamedTuple):
    """A figure of the engine after its last step."""

    help: str
    value: Callable[[StepStats, EngineInfo], float | None]
    is_share: bool = False


def kv_use(stats: StepStats, info: EngineInfo) -> float | None:
    """Returns the share of the device's KV blocks that sequences hold, from 0 to 1."""
    if info.num_gpu_blocks <= 0:
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

    def holds_for_engine(self, state: EngineData) -> bool:
        """Returns whether all words on the engine hold."""
        return all(test(state) for test in self.tests)

    def matches(self, state: EngineData, seq_id: int) -> bool:
        """Returns whether a sequence of `state`, if it is there, matches the filter."""
        sequence = state.sequences.get(seq_id)
        if sequence is None or self.filter is None:
            return False
        return self.filter.matches(state.requests[sequence.request_id], sequence, state.time)


def parse_condition(source: str) -> Condition:
    """Parses a condition that a user typed.

    Raises:
        FilterError: It is empty, a field or a unit is unknown, or a word is invalid.
    """
    tests: list[Callable[[EngineData], bool]] = []
    others: list[str] = []
    for word in words_of(source, ENGINE_FIELDS):
        name = (word["field"] or "").lower()
        if name in ENGINE_FIELDS:
            tests.append(engine_test(word))
        else:
            others.append(word[0])
    if not tests and not others:
        raise FilterError("a condition is needed, such as kv>95% or status:preempt")
    filter_ = parse(" ".join(others)) if others else None
    return Condition(source.strip(), filter_, tuple(tests))


def engine_test(word: re.Match[str]) -> Callable[[EngineData], bool]:
    """Returns the test of a word whose field is one of `ENGINE_FIELDS`.

    Raises:
        FilterError: It compares with no number.
    """
    name, is_negated = word["field"].lower(), bool(word["no"])
    wanted = (word["bare"] if word["text"] is None else word["text"]).rstrip(",")
    field = ENGINE_FIELDS[name]
    compare = number_test(name, word["op"], share(wanted) if field.is_share else quantity(wanted))

    def test(state: EngineData) -> bool:
        if state.stats is None or state.info is None:
            return False
        value = field.value(state.stats, state.info)
        return value is not None and compare(value) is not is_negated

    return test
