"""A sanitizer for schedulers: what must hold of an engine at every step, whatever it is running.

`Checker.apply` takes the place of `EngineState.apply` and returns what it found wrong. Each rule
looks only at what an event changed, so checking costs no more than a small multiple of applying.
Rules that need token ids are silent where a stream is redacted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from seqtop.sequence import (
    RequestMetrics,
    SequenceGroupMetadata,
    SequenceGroupMetadataLike,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.state.block_owners import BlockOwners
from seqtop.state.model import RequestState, SequenceState
from seqtop.wire import rows
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, SequenceUpdate, Step

RULES = {
    "block-shared": "two sequences hold a block whose tokens they do not have in common",
    "block-range": "a block table names a block that the pool does not have",
    "block-leak": "blocks are in use that no block table names, or the reverse",
    "pool-sum": "free, used and cached blocks do not add up to the pool",
    "cache-sum": "the cached blocks are not those that the prefix cache knows and no table names",
    "table-short": "a block table is too short for the computed tokens",
    "computed-beyond": "more tokens are computed than the sequence has",
    "computed-back": "computed tokens went back without a preemption",
    "transition": "a status followed another that it cannot follow",
    "late-token": "a sequence got tokens after its end",
    "unknown": "an event names something that nobody announced, or announced twice",
    "time-order": "times of a step or of a request are out of order",
    "queue-time": "time in queue is not first scheduled minus arrival",
    "budget": "a step computed more tokens, or ran more sequences, than its limits allow",
    "starvation": "a request waits on while later ones, no more urgent, are scheduled",
    "text-length": "the text deltas do not add up to the text",
    "swap-map": "a swap names a block that nobody holds there",
}
"""Every rule by its name, and what it finds."""

_WAITING, _RUNNING, _SWAPPED = (
    SequenceStatus.WAITING,
    SequenceStatus.RUNNING,
    SequenceStatus.SWAPPED,
)
_TIME_TOLERANCE = 1e-6
"""Seconds by which a difference of two times may miss: rounding, not an error."""


class Finding(msgspec.Struct):
    """One thing that is wrong: which rule says so, where, and what would be right."""

    rule: str
    message: str
    step: int
    request_id: str | None = None
    seq_id: int | None = None
    block: int | None = None


class _Before(msgspec.Struct):
    """What an event may change about a sequence, as it was."""

    status: SequenceStatus
    num_computed_tokens: int


class Checker:
    """Follows one engine and reports what cannot be right.

    Args:
        state: Where to begin: a snapshot, or (by default) an engine that is about to start.
        starvation_time: Seconds that a request may wait while later ones overtake it.
    """

    def __init__(self, state: EngineState | None = None, *, starvation_time: float = 60.0) -> None:
        self.state = state or EngineState()
        self._starvation_time = starvation_time
        self._owners = BlockOwners()
        self._group_owners = BlockOwners()
        """The same of the KV-cache groups after the first, whose blocks are never the first's."""
        self._swapped_out: set[int] = set()
        """Host blocks that hold something."""
        self._waiting: dict[int, dict[str, None]] = {}
        """By priority, the ids of requests never scheduled so far, in order of arrival."""
        self._starved: set[str] = set()
        self._last_step_time = -math.inf
        self._num_released = 0
        """Blocks that no table names any more since requests have ended after the last step."""
        self._cached_unused: set[int] = set()
        """Blocks that the prefix cache knows and no block table names."""
        self._num_unused_late = 0
        """Of these, how many came to be so after the last step."""
        for sequence in self.state.sequences.values():
            self._owners.update(sequence.seq_id, sequence.block_table)
            self._group_owners.update(sequence.seq_id, _group_blocks(sequence))
        self._sort_cached(self.state.cached_blocks or ())
        for request in self.state.requests.values():
            self._note_waiting(request)

    def apply(self, event: Event) -> list[Finding]:
        """Apply `event` to the state; return what it shows to be wrong."""
        findings: list[Finding] = []
        if isinstance(event, Step):
            # Ends are told after their step, so its figures are comparable only now.
            findings += self.check_pool()
            findings += self._swaps(event)
            self._num_released = self._num_unused_late = 0
        before = self._remember(event)
        num_named = self._num_named(0)
        num_anomalies = self.state.num_anomalies
        touched = list(self.state.apply(event))
        if self.state.num_anomalies > num_anomalies:
            findings.append(self._finding("unknown", self.state.last_anomaly or ""))
        added: dict[int, list[int]] = {}
        changed = _cache_changes(event)
        for seq_id in touched:
            sequence = self.state.sequences.get(seq_id)
            table = sequence.block_table if sequence else []
            known = self._owners.table(seq_id)
            positions = self._owners.update(seq_id, table)
            added[seq_id] = added.get(seq_id, []) + positions
            changed.update(table[position] for position in positions)
            if len(positions) == len(table):  # it did not just grow
                changed.update(known)
            self._group_owners.update(seq_id, _group_blocks(sequence) if sequence else [])
        findings += self._cached_range(_cache_changes(event))
        num_unused = len(self._cached_unused)
        self._sort_cached(changed)
        if not isinstance(event, Step):
            self._num_unused_late += len(self._cached_unused) - num_unused
        # Only now: within a step, a block may pass from one sequence to another.
        for seq_id, positions in added.items():
            if sequence := self.state.sequences.get(seq_id):
                findings += self._blocks(sequence, positions)
        if isinstance(event, Step):
            findings += self._step(event, before)
        elif isinstance(event, RequestArrived):
            if request := self.state.requests.get(event.request_id):
                self._note_waiting(request)
        elif isinstance(event, RequestFinished):
            self._num_released += num_named - self._num_named(0)
            findings += self._finished(event)
        return findings

    def check_pool(self) -> Iterator[Finding]:
        """Hold the pool's figures against the tables, as of the last step; call it at the end."""
        stats, info = self.state.stats, self.state.info
        if stats is None or info is None:
            return
        total = stats.num_free_blocks + stats.num_used_blocks + stats.num_cached_blocks
        num_blocks = info.num_gpu_blocks - info.num_reserved_blocks
        if total != num_blocks:
            yield self._finding(
                "pool-sum",
                f"{stats.num_free_blocks} free, {stats.num_used_blocks} used and"
                f" {stats.num_cached_blocks} cached blocks make {total},"
                f" the pool has {num_blocks}",
            )
        num_named = self._num_named(info.num_reserved_blocks)
        # Whoever was aborted since the last step still counted in its figures.
        if stats.num_used_blocks not in (num_named, num_named + self._num_released):
            yield self._finding(
                "block-leak",
                f"{stats.num_used_blocks} blocks are in use, the block tables name {num_named}",
            )

        num_unused = len(self._cached_unused)
        allowed = (num_unused, num_unused - self._num_unused_late)
        if self.state.cached_blocks is not None and stats.num_cached_blocks not in allowed:
            yield self._finding(
                "cache-sum",
                f"{stats.num_cached_blocks} blocks are cached, the prefix cache knows"
                f" {num_unused} that no block table names",
            )

    def _cached_range(self, blocks: Iterable[int]) -> Iterator[Finding]:
        info, cached = self.state.info, self.state.cached_blocks
        if info is None or cached is None:
            return
        for block in blocks:
            if block in cached and not 0 <= block < info.num_gpu_blocks:
                yield self._finding(
                    "block-range",
                    f"block {block} is in the prefix cache; the pool's are 0 to"
                    f" {info.num_gpu_blocks - 1}",
                    block=block,
                )

    def _sort_cached(self, blocks: Iterable[int]) -> None:
        """See anew which of `blocks` the prefix cache knows and no block table names."""
        cached = self.state.cached_blocks
        if cached is None:
            return
        for block in blocks:
            if block in cached and not self._owners.of(block) and not self._group_owners.of(block):
                self._cached_unused.add(block)
            else:
                self._cached_unused.discard(block)

    def _num_named(self, num_reserved: int) -> int:
        """Blocks that some table names, without the reserved ones, which stand for no block."""
        owners = (self._owners, self._group_owners)
        reserved = sum(1 for each in owners for _ in each.below(num_reserved))
        return sum(each.num_blocks for each in owners) - reserved

    def _remember(self, event: Event) -> dict[int, _Before]:
        if not isinstance(event, Step):
            return {}
        found = ((each.seq_id, self.state.sequences.get(each.seq_id)) for each in event.sequences)
        return {
            seq_id: _Before(sequence.status, sequence.num_computed_tokens)
            for seq_id, sequence in found
            if sequence is not None
        }

    def _step(self, step: Step, before: dict[int, _Before]) -> Iterator[Finding]:
        yield from self._step_times(step)
        yield from self._budget(step)
        preempted = {each.request_id for each in step.preemptions}
        for update in step.sequences:
            sequence = self.state.sequences.get(update.seq_id)
            if sequence is None:
                continue
            yield from self._computed(sequence)
            if update.seq_id in before:
                was = before[update.seq_id]
                yield from self._change(sequence, update, was, sequence.request_id in preempted)
        for group in step.execute.seq_group_metadata_list:
            if request := self.state.requests.get(group.request_id):
                yield from self._request_times(request)
                yield from self._overtaken(request)
        for seq_id in step.decodes.seq_ids if step.decodes else ():
            if sequence := self.state.sequences.get(seq_id):
                yield from self._decoded(sequence)

    def _decoded(self, sequence: SequenceState) -> Iterator[Finding]:
        """Look at a sequence that a step tells of in columns."""
        if SequenceStatus.is_finished(sequence.status):
            yield self._of(
                sequence,
                "late-token",
                f"a token after {sequence.status.name}; none may follow",
            )
            return
        yield from self._computed(sequence)
        request = self.state.requests[sequence.request_id]
        yield from self._request_times(request)
        yield from self._overtaken(request)

    def _blocks(self, sequence: SequenceState, added: list[int]) -> Iterator[Finding]:
        """Look at the logical positions whose block is new to the table, and the last written."""
        info = self.state.info
        if info is None or info.block_size < 1:
            return
        for position in added:
            block = sequence.block_table[position]
            if not 0 <= block < info.num_gpu_blocks:
                yield self._of(
                    sequence,
                    "block-range",
                    f"block {block} at position {position}; the pool's are 0 to"
                    f" {info.num_gpu_blocks - 1}",
                    block,
                )
        written = (sequence.num_computed_tokens - 1) // info.block_size
        positions = {*added, written} if 0 <= written < len(sequence.block_table) else {*added}
        for position in sorted(positions):
            block = sequence.block_table[position]
            if block < info.num_reserved_blocks:
                continue
            for other_id, other_position in self._owners.of(block).items():
                other = self.state.sequences.get(other_id)
                if other is None or other_id == sequence.seq_id:
                    continue
                if not self._in_common(sequence, position, other, other_position, info.block_size):
                    yield self._of(
                        sequence,
                        "block-shared",
                        f"block {block} is also position {other_position} of sequence {other_id},"
                        " whose tokens differ; only equal prefixes may share",
                        block,
                    )

    def _in_common(
        self, one: SequenceState, position: int, other: SequenceState, at: int, block_size: int
    ) -> bool:
        """Whether two sequences may hold one block: same place, same tokens up to its end.

        Only computed tokens count. A fork holds the block that its parent's newest token would go
        to, until one of them needs it and is given a copy.
        """
        tokens, others = self._tokens(one), self._tokens(other)
        if tokens is None or others is None:
            return True
        computed = min(one.num_computed_tokens, other.num_computed_tokens)
        end = min((position + 1) * block_size, computed)
        return position == at and tokens[:end] == others[:end]

    def _tokens(self, sequence: SequenceState) -> list[int] | None:
        prompt = self.state.requests[sequence.request_id].prompt_token_ids
        if len(prompt) != sequence.num_prompt_tokens:
            return None  # redacted
        return prompt + sequence.output_token_ids

    def _computed(self, sequence: SequenceState) -> Iterator[Finding]:
        computed = sequence.num_computed_tokens
        if computed > sequence.num_tokens:
            yield self._of(
                sequence,
                "computed-beyond",
                f"{computed} tokens are computed of {sequence.num_tokens}",
            )
        info = self.state.info
        if info is None or sequence.status is not _RUNNING or info.block_size < 1:
            return
        needed = math.ceil(computed / info.block_size)
        if len(sequence.block_table) < needed:
            yield self._of(
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
                yield self._of(
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
            yield self._of(sequence, "transition", f"{was.status.name} became {now.name}{unless}")
        if sequence.num_computed_tokens < was.num_computed_tokens and not is_preempted:
            yield self._of(
                sequence,
                "computed-back",
                f"computed tokens went from {was.num_computed_tokens} back to"
                f" {sequence.num_computed_tokens} without a preemption",
            )

    def _step_times(self, step: Step) -> Iterator[Finding]:
        last, self._last_step_time = self._last_step_time, step.time
        if step.time < last:
            yield self._finding(
                "time-order", f"the step ends {last - step.time:g} s before the one before it"
            )
        if step.time < step.start_time:
            yield self._finding(
                "time-order", f"the step ends {step.start_time - step.time:g} s before it starts"
            )

    def _request_times(self, request: RequestState) -> Iterator[Finding]:
        metrics: RequestMetrics = request.metrics
        in_order = (
            ("arrival_time", metrics.arrival_time),
            ("first_scheduled_time", metrics.first_scheduled_time),
            ("first_token_time", metrics.first_token_time),
            ("last_token_time", metrics.last_token_time if metrics.first_token_time else None),
            ("finished_time", metrics.finished_time),
        )
        known = [(name, time) for name, time in in_order if time is not None]
        for (earlier, first), (later, second) in pairwise(known):
            if second < first:
                yield self._finding(
                    "time-order",
                    f"{later} is {first - second:g} s before {earlier}",
                    request_id=request.request_id,
                )
        if metrics.time_in_queue is None or metrics.first_scheduled_time is None:
            return
        waited = metrics.first_scheduled_time - metrics.arrival_time
        if abs(metrics.time_in_queue - waited) > _TIME_TOLERANCE:
            yield self._finding(
                "queue-time",
                f"time_in_queue is {metrics.time_in_queue:g} s, first scheduled minus arrival"
                f" {waited:g} s",
                request_id=request.request_id,
            )

    def _budget(self, step: Step) -> Iterator[Finding]:
        info, stats = self.state.info, step.stats
        if info is None:
            return
        tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if tokens > info.max_num_batched_tokens:
            yield self._finding(
                "budget",
                f"{tokens} tokens were computed, the budget is {info.max_num_batched_tokens}",
            )
        num_seqs = rows.num_decodes(step)
        num_seqs += sum(_num_seqs(group) for group in step.execute.seq_group_metadata_list)
        if num_seqs > info.max_num_seqs:
            yield self._finding(
                "budget", f"{num_seqs} sequences ran, the limit is {info.max_num_seqs}"
            )

    def _swaps(self, step: Step) -> Iterator[Finding]:
        """Swaps act on the blocks as they were before the step."""
        for device_block, host_block in step.execute.blocks_to_swap_out:
            if not self._owners.of(device_block):
                yield self._swap_finding(step, "out", device_block, "device")
            self._swapped_out.add(host_block)
        for host_block, _ in step.execute.blocks_to_swap_in:
            if host_block not in self._swapped_out:
                yield self._swap_finding(step, "in", host_block, "host")
            self._swapped_out.discard(host_block)

    def _swap_finding(self, step: Step, way: str, block: int, where: str) -> Finding:
        message = f"swap {way} of {where} block {block}, which nobody holds there"
        return Finding("swap-map", message, step.step, block=block)

    def _note_waiting(self, request: RequestState) -> None:
        if request.metrics.first_scheduled_time is None and request.finish_reason is None:
            self._waiting.setdefault(request.priority, {})[request.request_id] = None

    def _overtaken(self, request: RequestState) -> Iterator[Finding]:
        """A request is scheduled for the first time: see who of its rank has waited longer."""
        queue = self._waiting.get(request.priority, {})
        if request.request_id not in queue:
            return
        del queue[request.request_id]
        first = self.state.requests.get(next(iter(queue), ""))
        arrived = request.metrics.arrival_time
        if first is None or first.request_id in self._starved:
            return
        waited = self.state.time - first.metrics.arrival_time
        if first.metrics.arrival_time < arrived and waited > self._starvation_time:
            self._starved.add(first.request_id)
            yield self._finding(
                "starvation",
                f"it has waited {waited:.1f} s while {request.request_id}, which arrived"
                f" {arrived - first.metrics.arrival_time:.1f} s later, is scheduled",
                request_id=first.request_id,
            )

    def _finished(self, event: RequestFinished) -> Iterator[Finding]:
        request = self.state.requests.get(event.request_id)
        if request is None:
            return
        self._waiting.get(request.priority, {}).pop(request.request_id, None)
        self._starved.discard(request.request_id)
        yield from self._request_times(request)
        if not event.text_lengths:
            return
        for seq_id, length in zip(request.seq_ids, event.text_lengths, strict=False):
            sequence = self.state.sequences[seq_id]
            if len(sequence.text) != length:
                yield self._of(
                    sequence,
                    "text-length",
                    f"the deltas add up to {len(sequence.text)} characters, the text has {length}",
                )

    def _of(
        self, sequence: SequenceState, rule: str, message: str, block: int | None = None
    ) -> Finding:
        return self._finding(
            rule, message, request_id=sequence.request_id, seq_id=sequence.seq_id, block=block
        )

    def _finding(
        self,
        rule: str,
        message: str,
        *,
        request_id: str | None = None,
        seq_id: int | None = None,
        block: int | None = None,
    ) -> Finding:
        return Finding(rule, message, self.state.step, request_id, seq_id, block)


def _cache_changes(event: Event) -> set[int]:
    """The blocks of which a step says that the prefix cache knows them, or has forgotten them."""
    if not isinstance(event, Step) or event.newly_cached_blocks is None:
        return set()
    return {*event.uncached_blocks, *(b for run in event.newly_cached_blocks for b in run.blocks)}


def _group_blocks(sequence: SequenceState) -> list[int]:
    return [block for table in sequence.group_block_tables for block in table]


def _num_seqs(group: SequenceGroupMetadataLike) -> int:
    if isinstance(group, SequenceGroupMetadata):
        return len(group.seq_data)
    return len(group.seq_data_delta)
