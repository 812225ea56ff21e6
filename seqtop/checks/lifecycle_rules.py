"""Rules on the lifecycle of a sequence: its status, its computed tokens, its text."""

from collections.abc import Iterator, Sequence

import msgspec

from seqtop.checks.finding import Finding
from seqtop.checks.rules import LOADING, RuleGroup, rule
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.block_index import has_positions
from seqtop.state.model import SequenceState
from seqtop.wire.batch import Member, SentOutput, scheduled_requests, sent_outputs
from seqtop.wire.messages import (
    Event,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StreamingUpdate,
)

_WAITING, _RUNNING, _SWAPPED = (
    SequenceStatus.WAITING,
    SequenceStatus.RUNNING,
    SequenceStatus.SWAPPED,
)

_FAILED = "FINISHED_ERROR"
"""vLLM's status of a request that has failed."""

_MAX_NAMED = 4
"""Tokens that a finding names."""

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
        self._named: dict[int, SequenceUpdate | None] = {}
        """The sequences in it and those that the step updates, with their updates."""
        self._before: dict[int, _Before] = {}
        """The sequences that the current event names, before it is applied."""
        self._num_anomalies = 0
        """The number of anomalies that is expected after the current event."""
        self._max_tokens: dict[str, int] = {}
        """The limits of unfinished requests. A session may have others with each input."""

    def before(self, event: Event) -> Iterator[Finding]:
        """Records the sequences that `event` names."""
        sequences = self.state.sequences
        self._before = {}
        self._num_anomalies = self.state.num_anomalies
        if not isinstance(event, Step):
            return
        self._named = {member.seq_id: member.update for member in self.members}
        self._named.update((update.seq_id, update) for update in event.sequences)
        for seq_id in self._named:
            if sequence := sequences.get(seq_id):
                self._before[seq_id] = _Before(
                    sequence.status, sequence.engine_status, sequence.num_computed_tokens
                )
        for finding in self._late_runs(event):
            self._num_anomalies += 1  # the reducer counts it, too
            yield finding
        for sent in sent_outputs(event):
            request, sequence = self.state.requests.get(sent.request_id), sequences.get(sent.seq_id)
            if request is None or not request.is_announced or sequence is None:
                continue
            if _published(sequence, sent) != [*sent.token_ids]:
                yield from self._output_differs(sequence, sent, event.step)

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the sequences that `event` names."""
        yield from self._unknown()
        match event:
            case RequestFinished():
                self._max_tokens.pop(event.request_id, None)
                yield from self._text_length(event)
            case StreamingUpdate():
                self._max_tokens.pop(event.request_id, None)
            case RequestArrived(sampling_params=params) if params and params.max_tokens is not None:
                self._max_tokens[event.request_id] = params.max_tokens
        if not isinstance(event, Step):
            return
        preempted = {preemption.request_id for preemption in event.preemptions}
        info = self.state.info
        block_size = info.block_size if info is not None and has_positions(info) else 0
        for seq_id, update in self._named.items():
            sequence = self.state.sequences.get(seq_id)
            if sequence is None:
                continue
            # Making a generator costs more than testing its condition.
            if sequence.num_computed_tokens > sequence.num_tokens:
                yield from self._computed_beyond(sequence)
            if (
                sequence.num_computed_tokens > block_size * len(sequence.block_table)
                and block_size > 0
            ):
                is_preempted = sequence.request_id in preempted
                yield from self._table_short(sequence, block_size, is_preempted=is_preempted)
            if before := self._before.get(seq_id):
                is_preempted = sequence.request_id in preempted
                if update is not None and SequenceStatus.is_finished(before.status):
                    yield from self._late_tokens(sequence, update, before)
                if sequence.status is not before.status:
                    yield from self._transition(sequence, before, is_preempted=is_preempted)
                if not is_preempted and sequence.num_computed_tokens < before.num_computed_tokens:
                    yield from self._computed_back(sequence, before)
            if update is not None and update.new_token_ids:
                yield from self._max_tokens_of(sequence, len(update.new_token_ids))
        for member in self.members:
            before = self._before.get(member.seq_id)
            if before and member.num_computed_before != before.num_computed_tokens:
                is_admitted = before.status is _WAITING or member.request_id in preempted
                yield from self._chunk_start(member, before, is_admitted=is_admitted)

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
        if update.new_token_ids or update.text_delta:
            yield self.of_sequence(
                sequence,
                f"{len(update.new_token_ids)} tokens after {before.status.name}; none may follow",
            )

    @rule("computed-beyond", "more tokens are computed than the sequence has")
    def _computed_beyond(self, sequence: SequenceState) -> Iterator[Finding]:
        computed = sequence.num_computed_tokens
        yield self.of_sequence(sequence, f"{computed} tokens are computed of {sequence.num_tokens}")

    @rule("output-differs", "the metadata of a sequence has other output tokens than its updates")
    def _output_differs(
        self, sequence: SequenceState, sent: SentOutput, step: int
    ) -> Iterator[Finding]:
        """Names the tokens that the engine computes with, and those that it has published."""
        output, num = sequence.output_token_ids, len(sent.token_ids)
        what = f"has {num}" if sent.is_whole else f"appends {num}"
        tokens = f"{what}{_last(sent.token_ids)}, the updates have {len(output)}{_last(output)}"
        ids = sequence.request_id, sequence.seq_id
        yield Finding("", f"the metadata {tokens}", step, *ids)

    @rule("max-tokens", "a sequence has more tokens than max_tokens or max_model_len allows")
    def _max_tokens_of(self, sequence: SequenceState, num_new: int) -> Iterator[Finding]:
        """Checks a sequence that got `num_new` tokens; reports only the first that is too many."""
        num, most = len(sequence.output_token_ids), self._max_tokens.get(sequence.request_id)
        if most is not None and num > most >= num - num_new:
            yield self.of_sequence(sequence, f"{num} output tokens, max_tokens is {most}")
        total, info = sequence.num_tokens, self.state.info
        if info is not None and total > info.max_model_len >= total - num_new:
            yield self.of_sequence(
                sequence, f"{total} tokens, max_model_len is {info.max_model_len}"
            )

    @rule("chunk-start", "a chunk does not begin after the computed tokens of its sequence")
    def _chunk_start(
        self, member: Member, before: _Before, *, is_admitted: bool
    ) -> Iterator[Finding]:
        sequence = self.state.sequences.get(member.seq_id)
        if sequence is None or SequenceStatus.is_finished(before.status):
            return
        start, computed = member.num_computed_before, before.num_computed_tokens
        if is_admitted:  # what an admission found in the prefix cache is computed
            is_wrong = start > max(computed, member.num_cached_tokens or 0)
        else:
            is_wrong = start != computed
        if is_wrong:
            yield self.of_sequence(
                sequence,
                f"its chunk begins after {start} tokens, of which {computed} were computed",
            )

    @rule("computed-back", "the number of computed tokens decreased without a preemption")
    def _computed_back(self, sequence: SequenceState, before: _Before) -> Iterator[Finding]:
        # A KV connector takes back the tokens of a load that has failed.
        has_loaded = before.engine_status == LOADING or sequence.engine_status == _FAILED
        if not has_loaded:
            yield self.of_sequence(
                sequence,
                f"computed tokens went from {before.num_computed_tokens} back to"
                f" {sequence.num_computed_tokens} without a preemption",
            )

    @rule("table-short", "a block table is too short for the computed tokens")
    def _table_short(
        self, sequence: SequenceState, block_size: int, *, is_preempted: bool
    ) -> Iterator[Finding]:
        if sequence.status is not _RUNNING and not (is_preempted and sequence.status is _WAITING):
            return
        needed = -(-sequence.num_computed_tokens // block_size)
        yield self.of_sequence(
            sequence,
            f"{sequence.num_computed_tokens} computed tokens need {needed} blocks, the table has"
            f" {len(sequence.block_table)}",
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
            allowed = is_preempted or sequence.engine_status not in ("", "PREEMPTED", "RETRACTED")
        else:
            # A step may admit a request and swap it out.
            allowed = is_preempted or (old, new) != (_WAITING, _SWAPPED)
        if not allowed:
            unless = "" if is_finished else " without a preemption"
            yield self.of_sequence(sequence, f"{old.name} became {new.name}{unless}")


def _published(sequence: SequenceState, sent: SentOutput) -> list[int]:
    """Returns the published tokens that those of the metadata should be."""
    output = sequence.output_token_ids
    return [*(output if sent.is_whole else output[max(len(output) - len(sent.token_ids), 0) :])]


def _last(token_ids: Sequence[int]) -> str:
    """Names the last of some tokens."""
    named = ", ".join(map(str, token_ids[-_MAX_NAMED:]))
    dots = "…, " if len(token_ids) > _MAX_NAMED else ""
    return f" ({dots}{named})" if named else ""
