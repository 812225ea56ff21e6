"""What may become of a sequence: its status, its computed tokens, its text."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from seqtop.checks.finding import Finding, Rules
from seqtop.sequence import SequenceStatus
from seqtop.state.model import SequenceState
from seqtop.wire.messages import Event, RequestFinished, SequenceUpdate, Step

_WAITING, _RUNNING, _SWAPPED = (
    SequenceStatus.WAITING,
    SequenceStatus.RUNNING,
    SequenceStatus.SWAPPED,
)


class _Before(msgspec.Struct):
    """What an event may change about a sequence, as it was."""

    status: SequenceStatus
    num_computed_tokens: int


class LifecycleRules(Rules):
    """Of sequences; call `remember` before an event, and what fits it after."""

    def remember(self, event: Event) -> dict[int, _Before]:
        """What there is of the sequences that `event` will name one by one."""
        if not isinstance(event, Step):
            return {}
        found = ((each.seq_id, self.state.sequences.get(each.seq_id)) for each in event.sequences)
        return {
            seq_id: _Before(sequence.status, sequence.num_computed_tokens)
            for seq_id, sequence in found
            if sequence is not None
        }

    def step(self, step: Step, before: dict[int, _Before]) -> Iterator[Finding]:
        """Look at the sequences that a step has named one by one."""
        preempted = {each.request_id for each in step.preemptions}
        for update in step.sequences:
            sequence = self.state.sequences.get(update.seq_id)
            if sequence is None:
                continue
            yield from self._computed(sequence)
            if update.seq_id in before:
                was = before[update.seq_id]
                yield from self._change(sequence, update, was, sequence.request_id in preempted)

    def late(self, event: Event) -> list[Finding]:
        """Tokens in columns for sequences that had ended before `event`, which is to be applied."""
        columns = event.decodes if isinstance(event, Step) else None
        found = map(self.state.sequences.get, columns.seq_ids if columns else ())
        return [
            self.of(each, "late-token", f"1 token after {each.status.name}; none may follow")
            for each in found
            if each is not None and SequenceStatus.is_finished(each.status)
        ]

    def decoded(self, sequence: SequenceState) -> Iterator[Finding]:
        """Look at a sequence that a step tells of in columns: nothing but counts has changed."""
        return self._computed(sequence)

    def finished(self, event: RequestFinished) -> Iterator[Finding]:
        """Hold the texts against what a request that has ended says of them."""
        request = self.state.requests.get(event.request_id)
        if request is None or not event.text_lengths:
            return
        for seq_id, length in zip(request.seq_ids, event.text_lengths, strict=False):
            sequence = self.state.sequences[seq_id]
            if len(sequence.text) != length:
                yield self.of(
                    sequence,
                    "text-length",
                    f"the deltas add up to {len(sequence.text)} characters, the text has {length}",
                )

    def _computed(self, sequence: SequenceState) -> Iterator[Finding]:
        computed = sequence.num_computed_tokens
        if computed > sequence.num_tokens:
            yield self.of(
                sequence,
                "computed-beyond",
                f"{computed} tokens are computed of {sequence.num_tokens}",
            )
        info = self.state.info
        if info is None or sequence.status is not _RUNNING or info.block_size < 1:
            return
        needed = math.ceil(computed / info.block_size)
        if len(sequence.block_table) < needed:
            yield self.of(
                sequence,
                "table-short",
                f"{computed} computed tokens need {needed} blocks, the table has"
                f" {len(sequence.block_table)}",
            )

    def _change(
        self, sequence: SequenceState, update: SequenceUpdate, was: _Before, is_preempted: bool
    ) -> Iterator[Finding]:
        now = sequence.status
        if SequenceStatus.is_finished(was.status):
            if update.new_token_ids or update.text_delta:
                yield self.of(
                    sequence,
                    "late-token",
                    f"{len(update.new_token_ids)} tokens after {was.status.name}; none may follow",
                )
            allowed = now is was.status
        elif was.status is _RUNNING and now in (_WAITING, _SWAPPED):
            allowed = is_preempted
        else:
            allowed = (was.status, now) != (_WAITING, _SWAPPED)
        if not allowed:
            unless = "" if SequenceStatus.is_finished(was.status) else " without a preemption"
            yield self.of(sequence, "transition", f"{was.status.name} became {now.name}{unless}")
        if sequence.num_computed_tokens < was.num_computed_tokens and not is_preempted:
            yield self.of(
                sequence,
                "computed-back",
                f"computed tokens went from {was.num_computed_tokens} back to"
                f" {sequence.num_computed_tokens} without a preemption",
            )
