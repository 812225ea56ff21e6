"""Snapshots of a state: how one is made, and how a state comes to agree with one.

A late viewer starts with an empty state. A publisher that has lost messages changes the state it
has: data that the engine's snapshot lacks stays as it was, such as phases from before the loss, and
requests that had finished by then.

A snapshot may come from the network, and the reducer relies on the invariants of `EngineState`. So
what contradicts them is refused here.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from seqtop.sequence import SequenceStatus
from seqtop.state.holdings import update_holders
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.reducer import add_arrival, add_cached_blocks, queue_preempted
from seqtop.state.sequence_updates import (
    clear_output,
    joint_lengths,
    new_sequence,
    remove_sequence,
    update_sequence,
)
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.state.wait_causes import OWN_TURN
from seqtop.state.waits import begin_wait, end_wait, update_queue
from seqtop.wire.arrays import Ints
from seqtop.wire.errors import WireError
from seqtop.wire.messages import CachedBlocks, RequestArrived, SequenceUpdate
from seqtop.wire.snapshot import (
    EngineHistory,
    RequestHistory,
    RequestSnapshot,
    SequenceHistory,
    SequenceSnapshot,
    Snapshot,
    Span,
    SpanKind,
)

# --- From a state


def head(state: EngineData) -> Snapshot:
    """Returns the snapshot of a state without its requests and cached blocks."""
    return Snapshot(
        time=state.time,
        step=state.step,
        stats=state.stats,
        requests=[],
        cached_blocks=None if state.cached_blocks is None else [],
        info=state.info,
        history=EngineHistory(**_fields(state, EngineHistory)),
    )


def request_snapshots(state: EngineData) -> Iterator[RequestSnapshot]:
    """Yields the requests of a state, in order of arrival."""
    for request in state.requests.values():
        arrival = RequestArrived(
            request_id=request.request_id,
            arrival_time=request.metrics.arrival_time,
            seq_ids=request.seq_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            is_prompt_partial=request.is_prompt_partial,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            sampling_params=request.sampling_params,
            pooling_params=request.pooling_params,
            priority=request.priority,
            metrics=request.metrics,
            lora=request.lora,
            cache_salt=request.cache_salt,
            traceparent=request.traceparent,
            transfer_id=request.transfer_id,
            num_encoder_inputs=request.num_encoder_inputs,
            parent_request_id=request.parent_request_id,
        )
        yield RequestSnapshot(
            arrival=arrival,
            sequences=[_sequence_snapshot(state.sequences[seq_id]) for seq_id in request.seq_ids],
            history=RequestHistory(**_fields(request, RequestHistory)),
        )


def cached_runs(state: EngineData) -> Iterator[CachedBlocks]:
    """Yields the blocks in the prefix cache, as runs of neighbours in one table."""
    numbered = enumerate((state.cached_blocks or {}).items())
    runs = groupby(
        numbered,
        lambda item: (item[1][1].request_id, item[1][1].seq_id, item[1][1].position - item[0]),
    )
    for (request_id, seq_id, _), entries in runs:
        blocks = [entry for _, entry in entries]
        yield CachedBlocks(
            request_id=request_id,
            seq_id=seq_id,
            position=blocks[0][1].position,
            blocks=[block for block, _ in blocks],
        )


def take(state: EngineData) -> Snapshot:
    """Returns the whole snapshot of a state; the two share their values."""
    cached = None if state.cached_blocks is None else list(cached_runs(state))
    return replace(head(state), requests=list(request_snapshots(state)), cached_blocks=cached)


def _sequence_snapshot(sequence: SequenceState) -> SequenceSnapshot:
    update = SequenceUpdate(
        seq_id=sequence.seq_id,
        status=sequence.status,
        num_computed_tokens=sequence.num_computed_tokens,
        num_cached_tokens=sequence.num_cached_tokens,
        num_external_tokens=sequence.num_external_tokens,
        block_table=sequence.block_table,
        group_block_tables=sequence.group_block_tables,
        stop_reason=sequence.stop_reason,
        engine_status=sequence.engine_status,
        num_draft_tokens=sequence.num_draft_tokens,
        num_accepted_tokens=sequence.num_accepted_tokens,
        prefix_misses=sequence.prefix_misses,
    )
    return SequenceSnapshot(
        update=update,
        output_token_ids=sequence.output_token_ids,
        output_logprobs=sequence.output_logprobs,
        text=sequence.text,
        top_logprobs=sequence.top_logprobs.by_place() if sequence.top_logprobs else {},
        history=SequenceHistory(**_fields(sequence, SequenceHistory)),
    )


def _fields(source: Any, history: type) -> dict[str, Any]:
    """Returns the values that a part of a state and its history have in common, by name."""
    return {name: getattr(source, name) for name in history.__struct_fields__}  # type: ignore[attr-defined]


def _set_fields(target: Any, history: EngineHistory | RequestHistory | SequenceHistory) -> None:
    """Sets the values that a part of a state and its history have in common; inverts `_fields`."""
    for name in history.__struct_fields__:
        setattr(target, name, getattr(history, name))


# --- To a state


def apply(state: EngineData, snapshot: Snapshot) -> Iterable[int]:
    """Changes `state` to agree with a whole snapshot; returns the ids of the changed sequences.

    Raises:
        WireError: The snapshot contradicts itself.
    """
    loader = SnapshotLoader(snapshot, state)
    loader.add(snapshot.requests, snapshot.cached_blocks or ())
    return loader.end()


class SnapshotLoader:
    """Changes a state to agree with a snapshot, which may arrive in parts.

    Args:
        snapshot: The snapshot. Its requests and cached blocks are added by `add`.
        state: The state to change.
    """

    def __init__(self, snapshot: Snapshot, state: EngineData) -> None:
        self._snapshot = snapshot
        self._state = state
        self._named: set[str] = set()
        self._owners: dict[int, str] = {}
        self._touched: list[int] = []
        self._num_output_tokens = state.num_output_tokens
        if snapshot.info is not None:
            state.info = snapshot.info
        state.cached_blocks = None if snapshot.cached_blocks is None else {}

    def add(self, requests: Iterable[RequestSnapshot], cached: Iterable[CachedBlocks]) -> None:
        """Adds requests and cached blocks of the snapshot, or of one of its parts.

        Raises:
            WireError: One of them is in the snapshot twice, or contradicts itself.
        """
        for whole in requests:
            self._add_request(whole)
        blocks = self._state.cached_blocks
        for run in cached:
            if blocks is not None and not blocks.keys().isdisjoint(run.blocks):
                raise WireError("snapshot: a cached block is in it twice")
            if blocks is not None:
                add_cached_blocks(self._state, blocks, run)

    def end(self) -> list[int]:
        """Completes the state; returns the ids of the changed sequences.

        Raises:
            WireError: The snapshot contradicts itself.
        """
        state, snapshot, history = self._state, self._snapshot, self._snapshot.history
        self._drop_ended()
        state.step, state.stats = snapshot.step, snapshot.stats
        state.time = max(state.time, snapshot.time)
        if history is None:
            state.num_output_tokens = max(self._num_output_tokens, 0)
            state.wait_reason_ids = []
            # What the time until then was for is unknown.
            until = max(state.blocked.until, snapshot.time)
            state.blocked = replace(state.blocked, until=until, cause="")
        else:
            _set_fields(state, history)
        requests = state.requests.values()
        for request in requests:
            update_holders(state, request)
            update_queue(state, request)
        finished = [request.request_id for request in requests if request.finish_reason is not None]
        if sorted(finished) != sorted(state.finished):
            raise WireError("snapshot: the list of finished requests does not fit the requests")
        return self._touched

    def _add_request(self, whole: RequestSnapshot) -> None:
        state, arrival, history = self._state, whole.arrival, whole.history
        request_id = arrival.request_id
        if request_id in self._named:
            raise WireError(f"snapshot: request {request_id!r} is in it twice")
        self._named.add(request_id)
        request = state.requests.get(request_id)
        if request is None:
            add_arrival(state, replace(arrival, seq_ids=[]))
            request = state.requests[request_id]
            if history is None and _has_run(whole):
                request.harm = None
        elif arrival.num_prompt_tokens != request.num_prompt_tokens:  # by a `StreamingUpdate`
            request.num_prompt_tokens, request.prompt = arrival.num_prompt_tokens, arrival.prompt
            request.prompt_token_ids = arrival.prompt_token_ids
        seq_ids = [sequence.update.seq_id for sequence in whole.sequences]
        if seq_ids != arrival.seq_ids:
            raise WireError(f"snapshot: the sequences of request {request_id!r} differ")
        for seq_id in {*request.seq_ids}.difference(seq_ids):
            remove_sequence(state, state.sequences[seq_id])
            self._touched.append(seq_id)
        for sequence in whole.sequences:
            self._add_sequence(request, sequence)
        request.seq_ids = seq_ids
        if arrival.metrics is not None:
            request.metrics = arrival.metrics
        if history is None:
            _correct_request(state, request, self._snapshot.time)
            return
        if not history.spans:
            raise WireError(f"snapshot: request {request_id!r} has no phase")
        _set_fields(request, history)

    def _add_sequence(self, request: RequestState, whole: SequenceSnapshot) -> None:
        state, snapshot, history = self._state, self._snapshot, whole.history
        seq_id = whole.update.seq_id
        sequence = state.sequences.get(seq_id)
        if seq_id in self._owners or (sequence and sequence.request_id != request.request_id):
            raise WireError(f"snapshot: sequence {seq_id} is in it twice")
        self._owners[seq_id] = request.request_id
        update = whole.update
        if update.is_removed or update.new_token_ids or update.text_delta:
            raise WireError(f"snapshot: the update of sequence {seq_id} is not its state")
        if sequence is None:
            sequence = new_sequence(state, request, seq_id)
            if sequence is None:
                raise WireError(f"snapshot: request {request.request_id!r}: {state.last_anomaly}")
        sequence.num_prompt_tokens = request.num_prompt_tokens
        self._num_output_tokens += len(whole.output_token_ids) - len(sequence.output_token_ids)
        clear_output(sequence)
        if update.num_draft_tokens is not None:
            sequence.num_draft_tokens = update.num_draft_tokens
            sequence.num_accepted_tokens = update.num_accepted_tokens or 0
        if update.prefix_misses is not None:
            sequence.prefix_misses = update.prefix_misses
        # The totals of the state have only what steps said.
        update = replace(update, num_draft_tokens=None, prefix_misses=None)
        update_sequence(state, update, step=snapshot.step, time=snapshot.time)
        sequence.output_token_ids = whole.output_token_ids
        sequence.output_logprobs = whole.output_logprobs
        sequence.text = whole.text
        if whole.top_logprobs:
            sequence.top_logprobs = TopLogprobs.of(whole.top_logprobs)
        self._touched.append(seq_id)
        if history is not None:
            _set_fields(sequence, history)
        else:
            for logprob in whole.output_logprobs:
                sequence.cumulative_logprob += logprob
            lengths = joint_lengths(len(whole.output_token_ids), len(whole.text))
            sequence.text_lengths = Ints("b").plus(lengths)

    def _drop_ended(self) -> None:
        """Drops the requests that ended before the snapshot without being observed."""
        state = self._state
        for request in list(state.requests.values()):
            if request.finish_reason is None and request.request_id not in self._named:
                del state.requests[request.request_id]
                state.holders.pop(request.request_id, None)
                state.in_queue.pop(request.request_id, None)
                for seq_id in request.seq_ids:
                    state.num_by_status[state.sequences.pop(seq_id).status] -= 1
                self._touched += request.seq_ids


def _has_run(whole: RequestSnapshot) -> bool:
    """Returns whether a request has run before."""
    metrics = whole.arrival.metrics
    if metrics is not None and metrics.first_scheduled_time is not None:
        return True
    statuses = (sequence.update.status for sequence in whole.sequences)
    return any(status not in (None, SequenceStatus.WAITING) for status in statuses)


def _correct_request(state: EngineData, request: RequestState, time: float) -> None:
    """Makes the last phase of a request agree with its status, if its past is unknown."""
    request.wait_reason = None
    if request.finish_reason is not None or not request.seq_ids:
        return
    sequence = state.sequences[request.seq_ids[0]]
    last = request.spans[-1]
    kind: SpanKind
    if sequence.status is SequenceStatus.WAITING:
        if last.kind in {"prefill", "decode"}:
            kind = "preempted" if sequence.engine_status in OWN_TURN else "queued"
            request.spans.append(Span(kind, start=last.end or time, end=None))
            begin_wait(state, request, last.end or time)
            queue_preempted(state, request)
    elif sequence.status is SequenceStatus.RUNNING:
        is_prefill = sequence.num_computed_tokens < sequence.num_prompt_tokens
        kind = "prefill" if is_prefill else "decode"
        if last.end is None:
            scheduled = request.metrics.first_scheduled_time
            last.end = scheduled if last.kind == "queued" else time
            end_wait(state, request, time if last.end is None else last.end)
        if last.kind != kind:
            request.spans.append(Span(kind, start=last.end or time, end=time))


# --- Between two states of a viewer


def share_finished(new: EngineData, old: EngineData) -> None:
    """Replaces each finished request of `new` that equals one of `old` by the object of `old`."""
    for request_id in old.finished:
        request = old.requests[request_id]
        if new.requests.get(request_id) != request:
            continue
        sequences = {seq_id: old.sequences[seq_id] for seq_id in request.seq_ids}
        if all(new.sequences[seq_id] == sequence for seq_id, sequence in sequences.items()):
            new.requests[request_id] = request
            new.sequences.update(sequences)


def carry_finished(new: EngineData, old: EngineData) -> None:
    """Adds the finished requests that only `old` has to `new`.

    Both must be states of the same run of an engine.
    """
    missing = [request_id for request_id in old.finished if request_id not in new.requests]
    if not missing:
        return
    requests = {request_id: old.requests[request_id] for request_id in missing}
    for request in requests.values():
        for seq_id in request.seq_ids:
            sequence = old.sequences[seq_id]
            new.sequences[seq_id] = sequence
            new.num_by_status[sequence.status] += 1
    new.requests = requests | new.requests  # in order of arrival
    new.finished = missing + new.finished
