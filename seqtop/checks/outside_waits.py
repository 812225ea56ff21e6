"""Waits that no turn ends: loads, grammars, inputs, and blocks that a connector still sends.

The scheduler does not decide when such a wait ends. Until its limit it is progress, on which others
may wait, too; after it, nothing lets them advance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from seqtop.checks.thresholds import Thresholds
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.wait_causes import OWN_TURN, wait_kind
from seqtop.wire.messages import Event, RequestArrived, Step, StreamingUpdate


class Wait(NamedTuple):
    """The wait of one request."""

    status: str
    """The engine's own name for what it waits for; for one that has ended, of its end."""
    since: float
    """The time since which it lasts, epoch seconds."""
    num_finished: int
    """The requests that had finished by then."""


def limit_of(status: str, limits: Thresholds) -> float:
    """Returns the seconds for which a request may have an engine's own status."""
    match wait_kind(status):
        case "input":
            return limits.input_seconds
        case "grammar":
            return limits.grammar_seconds
        case "encoder":
            return limits.encoder_seconds
        case "load":
            return limits.load_seconds
        case "transfer":
            return limits.transfer_seconds
        case "adapter":
            return limits.adapter_seconds
        case "other":
            return limits.other_seconds


class OutsideWaits:
    """The requests that wait for something other than their turn, or have ended and hold blocks.

    The `Checker` updates it after each event.

    Args:
        state: The state of the engine.
        limits: The limits of the waits.
    """

    def __init__(self, state: EngineState, limits: Thresholds) -> None:
        self._state = state
        self._limits = limits
        self._parked: dict[str, Wait] = {}
        self._ended: dict[str, Wait] = {}
        for sequence in state.sequences.values():
            self._note(sequence)

    def update(self, event: Event) -> None:
        """Notes the requests that begin to wait with `event`, which the state has applied."""
        sequences = self._state.sequences
        if isinstance(event, Step):
            for update in event.sequences:
                if update.engine_status or update.status is not None:
                    self._note(sequences.get(update.seq_id))
        elif isinstance(event, RequestArrived | StreamingUpdate):
            request = self._state.requests.get(event.request_id)
            for seq_id in request.seq_ids if request is not None else ():
                self._note(sequences.get(seq_id))

    def parked(self) -> dict[str, Wait]:
        """Returns the requests that wait for something other than their turn, by id."""
        self._parked = dict(self._still(self._parked, has_ended=False))
        return self._parked

    def ended(self) -> dict[str, Wait]:
        """Returns the requests that have ended and hold blocks, by id."""
        self._ended = dict(self._still(self._ended, has_ended=True))
        return self._ended

    def lasts(self) -> bool:
        """Returns whether one of them is within its limit, so that others may wait for it."""
        now, limits = self._state.time, self._limits
        return any(
            now - wait.since < limit_of(wait.status, limits) for wait in self.parked().values()
        ) or any(now - wait.since < limits.transfer_seconds for wait in self.ended().values())

    def is_overdue(self, request_id: str) -> bool:
        """Returns whether a request waits for something other than its turn beyond the limit."""
        wait = self.parked().get(request_id)
        if wait is not None:
            return self._state.time - wait.since >= limit_of(wait.status, self._limits)
        wait = self.ended().get(request_id)
        return wait is not None and self._state.time - wait.since >= self._limits.transfer_seconds

    def _note(self, sequence: SequenceState | None) -> None:
        if sequence is None:
            return
        state, name, status = self._state, sequence.request_id, sequence.engine_status
        if SequenceStatus.is_finished(sequence.status):
            if holds_blocks(sequence) and name not in self._ended:
                end = state.requests[name].metrics.finished_time
                since = state.time if end is None else min(end, state.time)
                self._ended[name] = Wait(status, since, state.num_finished)
        elif status not in OWN_TURN:
            before = self._parked.get(name)
            if before is None or before.status != status:
                self._parked[name] = Wait(status, state.time, state.num_finished)

    def _still(self, waits: dict[str, Wait], *, has_ended: bool) -> Iterator[tuple[str, Wait]]:
        """Yields those of `waits` that have not ended."""
        for name, wait in waits.items():
            request = self._state.requests.get(name)
            if request is None or request.finish_reason is not None:
                continue
            for sequence in sequences_of(self._state, request):
                is_finished = SequenceStatus.is_finished(sequence.status)
                if has_ended and is_finished and holds_blocks(sequence):
                    yield name, wait
                    break
                if not has_ended and not is_finished and sequence.engine_status == wait.status:
                    yield name, wait
                    break


def sequences_of(state: EngineState, request: RequestState) -> list[SequenceState]:
    """Returns the sequences of a request."""
    return [state.sequences[seq_id] for seq_id in request.seq_ids]


def holds_blocks(sequence: SequenceState) -> bool:
    """Returns whether a sequence has blocks on the device."""
    return bool(sequence.block_table) or any(sequence.group_block_tables)


def is_unfinished(state: EngineState, request: RequestState) -> bool:
    """Returns whether a request has a sequence that has not ended.

    One whose sequences have all ended waits for nothing, though its blocks may still be sent.
    """
    return request.finish_reason is None and not all(
        SequenceStatus.is_finished(sequence.status) for sequence in sequences_of(state, request)
    )
