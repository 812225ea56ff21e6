"""Rules on the lifecycle of a sequence: its status, its computed tokens, its text."""

import math
from collections.abc import Iterator, Sequence

import msgspec

from seqtop.checks.finding import Finding
from seqtop.checks.rules import LOADING, RuleGroup, rule
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import SequenceState
from seqtop.wire.batch import members, scheduled_requests
from seqtop.wire.messages import Event, RequestFinished, SequenceUpdate, Step

_WAITING, _RUNNING, _SWAPPED = (
    SequenceStatus.WAITING,
    SequenceStatus.RUNNING,
    SequenceStatus.SWAPPED,
)

_FAILED = "FINISHED_ERROR"
"""vLLM's status of a request that has failed."""

_LATE_TOKEN = rule("late-token", "a sequence got tokens after its end")


class _Before(msgspec.Struct):
    """A sequence before an event."""

    status: SequenceStatus
    engine_status: str
    num_computed_tokens: int


class LifecycleRules(RuleGroup):
    """Rules on sequences, and on events that name unknown ones."""

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._before: dict[int, _Before] = {}
        """The sequences that the current event names, before it is applied."""
        self._num_anomalies = 0
        """The number of anomalies that is expected after the current event."""

    def before(self, event: Event) -> Iterator[Finding]:
        """Records the sequences that `event` names."""
        sequences = self.state.sequences
        self._before = {}
        self._num_anomalies = self.state.num_anomalies
        if not isinstance(event, Step):
            return
        for seq_id in _named(event):
            if sequence := sequences.get(seq_id):
                self._before[seq_id] = _Before(
                    sequence.status, sequence.engine_status, sequence.num_computed_tokens
                )
        for finding in self._late_runs(event):
            self._num_anomalies += 1  # the reducer counts it, too
            yield finding

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the sequences that `event` names."""
        yield from self._unknown()
        if isinstance(event, RequestFinished):
            yield from self._text_length(event)
        if not isinstance(event, Step):
            return
        preempted = {preemption.request_id for preemption in event.preemptions}
        for seq_id, update in _named(event).items():
            sequence = self.state.sequences.get(seq_id)
            if sequence is None:
                continue
            yield from self._computed_beyond(sequence)
            yield from self._table_short(sequence)
            if before := self._before.get(seq_id):
                is_preempted = sequence.request_id in preempted
                if update is not None:
                    yield from self._late_tokens(sequence, update, before)
                yield from self._transition(sequence, before, is_preempted=is_preempted)
                if not is_preempted:
                    yield from self._computed_back(sequence, before)

    @rule("unknown", "an event names an object that was not announced, or was announced twice")
    def _unknown(self) -> Iterator[Finding]:
        if self.state.num_anomalies > self._num_anomalies:
            yield self.of_engine(self.state.last_anomaly or "")

    @_LATE_TOKEN
    def _late_runs(self, step: Step) -> Iterator[Finding]:
        for request_id in scheduled_requests(step):
            request = self.state.requests.get(request_id)
            if request is None or request.ended_after(step.start_time):
                continue
            if request.finish_reason is not None:
                yield self.of_engine("it is in the batch after its end", request_id=request_id)

    @_LATE_TOKEN
    def _late_tokens(
        self, sequence: SequenceState, update: SequenceUpdate, before: _Before
    ) -> Iterator[Finding]:
        is_late = SequenceStatus.is_finished(before.status)
        if is_late and (update.new_token_ids or update.text_delta):
            yield self.of_sequence(
                sequence,
                f"{len(update.new_token_ids)} tokens after {before.status.name}; none may follow",
            )

    @rule("computed-beyond", "more tokens are computed than the sequence has")
    def _computed_beyond(self, sequence: SequenceState) -> Iterator[Finding]:
        computed = sequence.num_computed_tokens
        if computed > sequence.num_tokens:
            yield self.of_sequence(
                sequence, f"{computed} tokens are computed of {sequence.num_tokens}"
            )

    @rule("computed-back", "the number of computed tokens decreased without a preemption")
    def _computed_back(self, sequence: SequenceState, before: _Before) -> Iterator[Finding]:
        # A KV connector takes back the tokens of a load that has failed.
        has_loaded = before.engine_status == LOADING or sequence.engine_status == _FAILED
        if sequence.num_computed_tokens < before.num_computed_tokens and not has_loaded:
            yield self.of_sequence(
                sequence,
                f"computed tokens went from {before.num_computed_tokens} back to"
                f" {sequence.num_computed_tokens} without a preemption",
            )

    @rule("table-short", "a block table is too short for the computed tokens")
    def _table_short(self, sequence: SequenceState) -> Iterator[Finding]:
        info = self.state.info
        if info is None or sequence.status is not _RUNNING or info.block_size < 1:
            return
        needed = math.ceil(sequence.num_computed_tokens / info.block_size)
        if len(sequence.block_table) < needed:
            yield self.of_sequence(
                sequence,
                f"{sequence.num_computed_tokens} computed tokens need {needed} blocks, the table"
                f" has {len(sequence.block_table)}",
            )

    @rule("text-length", "the text deltas do not add up to the text")
    def _text_length(self, event: RequestFinished) -> Iterator[Finding]:
        request = self.state.requests.get(event.request_id)
        if request is None or not event.text_lengths:
            return
        for seq_id, length in zip(request.seq_ids, event.text_lengths, strict=False):
            sequence = self.state.sequences[seq_id]
            if len(sequence.text) != length:
                yield self.of_sequence(
                    sequence,
                    f"the deltas add up to {len(sequence.text)} characters, the text has {length}",
                )

    @rule("transition", "a status followed another that it cannot follow")
    def _transition(
        self, sequence: SequenceState, before: _Before, *, is_preempted: bool
    ) -> Iterator[Finding]:
        old, new = before.status, sequence.status
        is_finished = SequenceStatus.is_finished(old)
        if is_finished:
            allowed = new is old
        elif old is _RUNNING and new in (_WAITING, _SWAPPED):
            # A streaming session keeps its blocks while it waits for input.
            allowed = is_preempted or sequence.engine_status not in ("", "PREEMPTED")
        else:
            allowed = (old, new) != (_WAITING, _SWAPPED)
        if not allowed:
            unless = "" if is_finished else " without a preemption"
            yield self.of_sequence(sequence, f"{old.name} became {new.name}{unless}")


def _named(step: Step) -> dict[int, SequenceUpdate | None]:
    """Returns the sequences in the batch of a step and those that it updates."""
    named: dict[int, SequenceUpdate | None] = {
        member.seq_id: member.update for member in members(step)
    }
    named.update((update.seq_id, update) for update in step.sequences)
    return named
