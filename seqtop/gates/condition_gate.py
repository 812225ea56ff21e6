"""A condition that must not hold at any moment of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from seqtop.checks.gate import Gate, Outcome
from seqtop.state import EngineState, not_available
from seqtop.state.condition import ENGINE, ENGINE_FIELDS, ConditionTracker, parse_condition
from seqtop.text import format as fmt
from seqtop.wire.messages import EngineInfo, Event, Step

_MAX_NAMED: Final = 3
_MAX_COUNTED: Final = 10_000
"""Requests for which a condition held that are counted."""


class ConditionGate(Gate):
    """Reads a run, and finds when a condition held.

    It is evaluated after each message, so also between two steps.

    Args:
        source: The condition as typed.

    Raises:
        FilterError: The condition is invalid.
    """

    def __init__(self, source: str) -> None:
        self._condition = condition = parse_condition(source)
        self._tracker = ConditionTracker(condition)
        self._state: EngineState | None = None
        self._time = -math.inf
        self._first: tuple[int, str | None] | None = None
        """The step after which it held first, and a request for which it did."""
        self._is_at_start = False
        """True if it held when the run began."""
        self._num_steps = self._num_held = 0
        self._seconds = 0.0
        self._matched: dict[str, None] = {}
        """The requests for which it held, up to one more than `_MAX_COUNTED`."""
        self._unknown = dict.fromkeys(condition.engine_fields)
        """The figures of the engine in it that have never been known."""

    def start(self, position: int, state: EngineState) -> None:
        """Evaluates the condition in a first state, or in one after a gap."""
        is_first = self._state is None
        self._state, self._time = state, state.time
        self._tracker.holds = False
        self._read(self._tracker.replace(state), held=False)
        self._is_at_start |= is_first and self._tracker.holds

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Evaluates the condition after an event."""
        state, held = self._state, self._tracker.holds
        assert state is not None, "`start` comes first"
        if held and 0 < (seconds := state.time - self._time) < math.inf:
            self._seconds += seconds
        self._time = state.time
        self._read(self._tracker.update(state, event, touched), held=held)
        if isinstance(event, Step):
            self._num_steps += 1
            self._num_held += self._tracker.holds

    def outcomes(self) -> list[Outcome]:
        """Returns whether the condition held, when first, and for how long."""
        gate, steps = self._condition.source, fmt.plural(self._num_steps, "step")
        if self._first is not None:
            step, request_id = self._first
            begin = "held when the run began" if self._is_at_start else "begins to hold here"
            message = (
                f"{begin}; it held after {fmt.count(self._num_held)} of {steps}, for"
                f" {fmt.seconds(self._seconds)} in all{self._requests()}"
            )
            return [
                Outcome(
                    rule="condition",
                    gate=gate,
                    result="missed",
                    message=message,
                    step=step,
                    request_id=request_id,
                )
            ]
        if missing := self._missing():
            reason = "the engine does not tell " + ", ".join(missing)
            return [Outcome(rule="condition", gate=gate, result="unknown", message=reason)]
        message = f"never held in {steps}"
        info, filter_ = self._info, self._condition.filter
        if info is not None and info.redacted and filter_ is not None and filter_.patterns:
            message += "; the texts are redacted, so that only ids were searched"
        return [Outcome(rule="condition", gate=gate, result="met", message=message)]

    @property
    def _info(self) -> EngineInfo | None:
        return None if self._state is None else self._state.info

    def _read(self, seq_id: int | None, *, held: bool) -> None:
        """Reads the state after the tracker has.

        Args:
            seq_id: What the tracker returned.
            held: Whether the condition held before.
        """
        state, tracker = self._state, self._tracker
        assert state is not None, "`start` comes first"
        if self._unknown and state.stats is not None and state.info is not None:
            for name in [*self._unknown]:
                if ENGINE_FIELDS[name].value(state.stats, state.info) is not None:
                    del self._unknown[name]
        if not tracker.holds:
            return
        if self._first is None:
            assert seq_id is not None, "it begins to hold"
            sequence = state.sequences.get(seq_id)
            self._first = state.step, None if sequence is None else sequence.request_id
        for seq_id in tracker.began if held else tracker.matching - {ENGINE}:
            if len(self._matched) > _MAX_COUNTED:
                break
            if (sequence := state.sequences.get(seq_id)) is not None:
                self._matched[sequence.request_id] = None

    def _missing(self) -> list[str]:
        """Returns the words that nothing is known of."""
        missing = [*self._unknown]
        if self._condition.filter is not None and self._info is not None:
            unknown = self._info.not_available
            missing += [
                name
                for name in self._condition.filter.fields
                if name in unknown or not_available.REQUESTS in unknown
            ]
        return missing

    def _requests(self) -> str:
        """Returns the number of the requests for which it held, and the ids of the first."""
        if not self._matched:
            return ""
        count = len(self._matched)
        names = [*self._matched][:_MAX_NAMED]
        more = ", …" if count > len(names) else ""
        number = (
            fmt.plural(count, "request")
            if count <= _MAX_COUNTED
            else f"more than {_MAX_COUNTED:,} requests"
        )
        return f", for {number} ({', '.join(names)}{more})"
