"""How each event changes the state. The only code that writes one.

Events come from the network, so nothing here trusts that they fit together: an update for a
sequence nobody announced is counted as an anomaly and otherwise ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from seqtop.sequence import (
    RequestMetrics,
    SequenceData,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.state import decodes
from seqtop.state.model import CachedBlock, RequestState, SequenceState, Span, SpanKind
from seqtop.wire.columns import Ints
from seqtop.wire.messages import (
    CachedBlocks,
    EngineInfo,
    EngineStopped,
    Event,
    Heartbeat,
    Preemption,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
)

if TYPE_CHECKING:
    from seqtop.state import EngineState


def apply(state: EngineState, event: Event) -> Iterable[int]:
    """Change `state` by one event; return the ids of the sequences that changed or went."""
    match event:
        case Step():
            return _step(state, event)
        case RequestArrived():
            return arrived(state, event)
        case RequestFinished():
            return _finished(state, event)
        case Heartbeat():
            state.time = max(state.time, event.time)
        case EngineInfo():
            state.info = event
            state.time = max(state.time, event.start_time)
        case EngineStopped():
            state.stopped = event.reason or "the engine stopped"
            state.time = max(state.time, event.time)
    return ()


def arrived(state: EngineState, event: RequestArrived) -> Iterable[int]:
    if event.request_id in state.requests:
        state.note_anomaly(f"request {event.request_id} arrived twice")
        return ()
    request = _new_request(state, event.request_id, event.arrival_time)
    request.num_prompt_tokens = event.num_prompt_tokens
    request.prompt = event.prompt
    request.prompt_token_ids = Ints.of(event.prompt_token_ids)
    request.sampling_params = event.sampling_params
    request.pooling_params = event.pooling_params
    request.priority = event.priority
    state.num_queued += 1
    request.queue_turn = state.num_queued
    if event.metrics is not None:
        request.metrics = event.metrics
    for seq_id in event.seq_ids:
        if seq_id in state.sequences:
            state.note_anomaly(f"sequence {seq_id} announced twice")
        else:
            _new_sequence(state, request, seq_id).engine_status = event.engine_status
    state.time = max(state.time, event.arrival_time)
    return request.seq_ids


def _step(state: EngineState, step: Step) -> Iterable[int]:
    # A stream of bare vLLM deltas has no updates: then the deltas are all there is to go by.
    bare = not step.sequences and step.decodes is None
    touched: list[int] = []
    for group in step.execute.seq_group_metadata_list:
        if isinstance(group, SequenceGroupMetadata):
            touched += _full(state, step, group, bare=bare)
        else:
            touched += _delta(state, step, group, bare=bare)
    swapped_out = dict(step.execute.blocks_to_swap_out)
    for update in step.sequences:
        _swap(state, update, swapped_out)
        update_sequence(state, update, step=step.step, time=step.time)
        _count_ahead(state, update)
        touched.append(update.seq_id)
    if step.decodes is not None:  # after the rows: a fork begins as its parent was before the step
        touched += decodes.apply(state, step, step.decodes)
    for preemption in step.preemptions:
        _preempted(state, step, preemption)
    touched += _wait_reasons(state, step)
    if step.newly_cached_blocks is not None:
        _prefix_cache(state, step.newly_cached_blocks, step.uncached_blocks)
    for request_id, metrics in step.metrics.items():
        if request := state.requests.get(request_id):
            request.metrics = metrics
    state.step = step.step
    state.time = max(state.time, step.time)
    state.stats = step.stats
    state.num_steps_seen += 1
    state.num_prefill_tokens += step.stats.num_prefill_tokens
    return touched


def _prefix_cache(state: EngineState, known: list[CachedBlocks], forgotten: list[int]) -> None:
    """Take over which blocks the prefix cache has forgotten and come to know."""
    cached = state.cached_blocks
    if cached is None:
        cached = state.cached_blocks = {}
    for block in forgotten:
        if cached.pop(block, None) is None:
            state.note_anomaly(f"the prefix cache forgot block {block}, which it did not know")
    cached |= by_block(known)


def by_block(known: list[CachedBlocks]) -> dict[int, CachedBlock]:
    """What the prefix cache knows, for each block alone."""
    return {
        block: CachedBlock(run.request_id, run.seq_id, position)
        for run in known
        for position, block in enumerate(run.blocks, run.position)
    }


def _wait_reasons(state: EngineState, step: Step) -> Iterable[int]:
    """Take over why requests wait; a reason that is not given again holds no longer."""
    touched: list[int] = []
    for request_id in state.told_to_wait:
        if request := state.requests.get(request_id):
            request.wait_reason = None
            touched += request.seq_ids
    state.told_to_wait = [reason.request_id for reason in step.wait_reasons]
    for reason in step.wait_reasons:
        if request := state.requests.get(reason.request_id):
            request.wait_reason = reason
            touched += request.seq_ids
    return touched


def _full(
    state: EngineState, step: Step, group: SequenceGroupMetadata, *, bare: bool
) -> Iterable[int]:
    request = state.requests.get(group.request_id)
    if request is None:
        # No arrival was announced (plain vLLM announces none): the full tells what it can.
        request = _new_request(state, group.request_id, step.start_time)
    request.sampling_params = group.sampling_params
    request.pooling_params = group.pooling_params
    for seq_id, data in group.seq_data.items():
        sequence = state.sequences.get(seq_id) or _new_sequence(state, request, seq_id)
        _take_over(request, sequence, data)
        sequence.block_table = group.block_tables.get(seq_id, [])
        _set_status(state, sequence, SequenceStatus.RUNNING)
        sequence.last_step = step.step
    _scheduled(request, step, is_prompt=group.is_prompt, chunk=group.token_chunk_size)
    return group.seq_data if bare else ()


def _take_over(request: RequestState, sequence: SequenceState, data: SequenceData) -> None:
    """Let a full correct what updates have said so far."""
    sequence.num_prompt_tokens = request.num_prompt_tokens = data.get_prompt_len()
    sequence.num_computed_tokens = data.get_num_computed_tokens()
    sequence.num_cached_tokens = data.get_num_cached_tokens()
    sequence.cumulative_logprob = data.cumulative_logprob
    if data.get_output_len() != len(sequence.output_token_ids):
        sequence.output_token_ids = Ints.of(data.output_token_ids)
        lengths = _together(data.get_output_len(), len(sequence.text))
        sequence.text_lengths = Ints("b").plus(lengths)
    if not request.prompt_token_ids:
        request.prompt_token_ids = Ints.of(data.prompt_token_ids)


def _delta(
    state: EngineState, step: Step, group: SequenceGroupMetadataDelta, *, bare: bool
) -> Iterable[int]:
    request = state.requests.get(group.request_id)
    if request is None:
        state.note_anomaly(f"delta for unknown request {group.request_id}")
        return ()
    _scheduled(request, step, is_prompt=group.is_prompt, chunk=group.token_chunk_size)
    for seq_id, table in group.block_tables.items():
        if sequence := state.sequences.get(seq_id):
            sequence.block_table = table
    if not bare:
        return ()
    for seq_id, data in group.seq_data_delta.items():
        sequence = state.sequences.get(seq_id)
        if sequence is None:
            state.note_anomaly(f"delta for unknown sequence {seq_id}")
            continue
        new_ids = data.new_output_token_ids
        sequence.output_token_ids = sequence.output_token_ids.plus(new_ids)
        sequence.text_lengths = sequence.text_lengths.plus([0] * len(new_ids))
        sequence.num_computed_tokens = data.new_num_computed_tokens
        sequence.cumulative_logprob = data.new_cumulative_logprob
        sequence.last_step = step.step
        _set_status(state, sequence, SequenceStatus.RUNNING)
    return group.seq_data_delta


def _scheduled(request: RequestState, step: Step, *, is_prompt: bool, chunk: int | None) -> None:
    """Account one step to a request that was in its batch."""
    request.token_chunk_size = chunk or 1
    request.num_scheduled_steps += 1
    request.wait_reason = None
    metrics, stats = request.metrics, step.stats
    metrics.scheduler_time = (metrics.scheduler_time or 0.0) + stats.scheduler_time
    metrics.model_forward_time = _sum(metrics.model_forward_time, stats.model_forward_time)
    metrics.model_execute_time = _sum(metrics.model_execute_time, stats.model_execute_time)
    kind: SpanKind = "prefill" if is_prompt else "decode"
    last = request.spans[-1]
    if kind == "decode" and last.kind == "decode":
        span = last
    else:
        _close_span(request, step.start_time)
        span = Span(kind, start=step.start_time, end=None)
        request.spans.append(span)
    # Each prefill chunk is a span of its own; decode steps share one until something intervenes.
    span.end = step.time
    span.num_steps += 1
    span.num_tokens += request.token_chunk_size


def _count_ahead(state: EngineState, update: SequenceUpdate) -> None:
    """A step of several iterations computes more of a sequence than the chunk that it announced."""
    sequence = state.sequences.get(update.seq_id)
    request = state.requests.get(sequence.request_id) if sequence else None
    if request is not None and request.spans[-1].kind == "decode":
        ahead = len(update.new_token_ids) - request.token_chunk_size
        request.spans[-1].num_tokens += max(ahead, 0)


def _sum(total: float | None, more: float | None) -> float | None:
    """What is not known stays unknown: it is no zero."""
    return total if more is None else (total or 0.0) + more


def _swap(state: EngineState, update: SequenceUpdate, swapped_out: dict[int, int]) -> None:
    """Note where in host memory a sequence is before `update` takes its device blocks away.

    No message names host blocks in tables: the step says which block went where.
    """
    sequence = state.sequences.get(update.seq_id)
    if sequence is None:
        return
    if update.status is not SequenceStatus.SWAPPED:
        sequence.host_table = []
    elif sequence.block_table:
        sequence.host_table = [
            swapped_out[block] for block in sequence.block_table if block in swapped_out
        ]


def update_sequence(state: EngineState, update: SequenceUpdate, *, step: int, time: float) -> None:
    """Change one sequence by what a step brought it."""
    sequence = state.sequences.get(update.seq_id)
    if sequence is None:
        request = state.requests.get(update.request_id or "")
        if request is None:
            state.note_anomaly(f"update for unknown sequence {update.seq_id}")
            return
        sequence = _new_sequence(state, request, update.seq_id)
        _fork(state, sequence, update.parent_seq_id)
    if update.new_token_ids or update.text_delta:
        _append_output(state, sequence, update, time)
    sequence.num_computed_tokens = update.num_computed_tokens
    sequence.num_cached_tokens = update.num_cached_tokens
    if update.block_table is not None:
        sequence.block_table = update.block_table
    else:
        sequence.block_table.extend(update.new_blocks)
    if update.group_block_tables is not None:
        sequence.group_block_tables = update.group_block_tables
    if update.num_draft_tokens is not None:
        drafted = (sequence.num_draft_tokens or 0) + update.num_draft_tokens
        sequence.num_draft_tokens = drafted
        accepted = (sequence.num_accepted_tokens or 0) + (update.num_accepted_tokens or 0)
        sequence.num_accepted_tokens = accepted
    sequence.engine_status = update.engine_status
    if update.stop_reason is not None:
        sequence.stop_reason = update.stop_reason
    sequence.last_step = step
    _set_status(state, sequence, update.status)
    if update.is_removed:
        remove_sequence(state, sequence)


def _fork(state: EngineState, sequence: SequenceState, parent_seq_id: int | None) -> None:
    """Let a new sequence begin with what its parent has put out so far."""
    sequence.parent_seq_id = parent_seq_id
    parent = state.sequences.get(-1 if parent_seq_id is None else parent_seq_id)
    if parent is None:
        return
    sequence.output_token_ids = parent.output_token_ids.copy()
    sequence.output_logprobs = parent.output_logprobs.copy()
    sequence.top_logprobs = parent.top_logprobs.copy()
    sequence.cumulative_logprob = parent.cumulative_logprob
    sequence.text = parent.text
    sequence.text_lengths = parent.text_lengths.copy()
    sequence.fork_length = sequence.num_tokens


def _append_output(
    state: EngineState, sequence: SequenceState, update: SequenceUpdate, time: float
) -> None:
    if update.top_logprobs:
        first = len(sequence.output_token_ids)
        sequence.top_logprobs |= dict(enumerate(update.top_logprobs, first))
    sequence.output_token_ids = sequence.output_token_ids.plus(update.new_token_ids)
    sequence.output_logprobs = sequence.output_logprobs.plus(update.new_logprobs)
    for logprob in update.new_logprobs:  # one by one: the engine's own order of additions
        sequence.cumulative_logprob += logprob
    if update.text_delta:
        sequence.text += update.text_delta
        sequence.last_delta_length = len(update.text_delta)
    _end_tokens(sequence, update)
    state.num_output_tokens += len(update.new_token_ids)
    if update.new_token_ids and (request := state.requests.get(sequence.request_id)):
        request.metrics.last_token_time = time


def _end_tokens(sequence: SequenceState, update: SequenceUpdate) -> None:
    """Note where in the text the new tokens end, as far as that can be known."""
    lengths, length, count = (
        sequence.text_lengths,
        len(update.text_delta),
        len(update.new_token_ids),
    )
    if count == 1:
        new = [length]
    elif count:
        new = _decoded_lengths(update) or _together(count, length)
    elif lengths:  # what had been held back
        new = [lengths.pop() + length]
    else:
        return
    sequence.text_lengths = lengths.plus(new)


def _together(count: int, length: int) -> list[int]:
    """Lengths of the texts of tokens of which only the sum is known."""
    return [*[-1 if length else 0] * (count - 1), length] if count else []


def _decoded_lengths(update: SequenceUpdate) -> list[int] | None:
    """How long each new token's text is, where the candidates tell the same text as the delta."""
    own = zip(update.new_token_ids, update.top_logprobs or (), strict=False)
    texts = [found.decoded_token or "" for token, each in own if (found := each.get(token))]
    if len(texts) != len(update.new_token_ids) or "".join(texts) != update.text_delta:
        return None
    return [len(text) for text in texts]


def _preempted(state: EngineState, step: Step, preemption: Preemption) -> None:
    request = state.requests.get(preemption.request_id)
    if request is None:
        state.note_anomaly(f"preemption of unknown request {preemption.request_id}")
        return
    request.num_preemptions += 1
    state.num_queued += 1
    request.queue_turn = -state.num_queued
    request.num_lost_tokens += preemption.num_lost_tokens
    request.last_preemption_mode = preemption.mode
    request.preempted_for = preemption.for_request_id
    request.preemption_steps.append(step.step)
    _close_span(request, step.start_time)
    kind: SpanKind = "swapped" if preemption.mode == "swap" else "preempted"
    request.spans.append(Span(kind, start=step.start_time, end=None))


def _finished(state: EngineState, event: RequestFinished) -> Iterable[int]:
    request = state.requests.get(event.request_id)
    if request is None or request.finish_reason is not None:
        state.note_anomaly(f"end of unknown or ended request {event.request_id}")
        return ()
    seq_ids = _put_in_order(state, request, event.seq_ids)
    for seq_id in request.seq_ids:
        sequence = state.sequences[seq_id]
        if not SequenceStatus.is_finished(sequence.status):
            _set_status(state, sequence, event.status)
            sequence.block_table, sequence.group_block_tables = [], []
            sequence.host_table = []
    request.metrics = event.metrics
    if event.metrics.finished_time is None:  # not every engine keeps this figure
        event.metrics.finished_time = event.time
    request.wait_reason = None
    request.finish_reason = SequenceStatus.get_finished_reason(event.status) or "stop"
    _close_span(request, event.time)
    state.time = max(state.time, event.time)
    return [*seq_ids, *state.retire(event.request_id)]


def _put_in_order(state: EngineState, request: RequestState, ranking: list[int]) -> list[int]:
    """Keep those of a request's sequences that are in `ranking`, if it is not empty, in its order.

    Returns the ids of all that there were.
    """
    seq_ids = request.seq_ids
    if ranking and ranking != seq_ids:
        known = {*seq_ids}
        request.seq_ids = [seq_id for seq_id in dict.fromkeys(ranking) if seq_id in known]
        for seq_id in known.difference(ranking):
            state.num_by_status[state.sequences.pop(seq_id).status] -= 1
    return seq_ids


def _new_request(state: EngineState, request_id: str, arrival_time: float) -> RequestState:
    metrics = RequestMetrics(
        arrival_time=arrival_time,
        last_token_time=arrival_time,
        first_scheduled_time=None,
        first_token_time=None,
        time_in_queue=None,
    )
    request = RequestState(request_id, metrics, seq_ids=[])
    request.spans.append(Span("queued", start=arrival_time, end=None))
    state.requests[request_id] = request
    return request


def _new_sequence(state: EngineState, request: RequestState, seq_id: int) -> SequenceState:
    sequence = SequenceState(seq_id, request.request_id)
    sequence.num_prompt_tokens = request.num_prompt_tokens
    request.seq_ids.append(seq_id)
    state.sequences[seq_id] = sequence
    state.num_by_status[sequence.status] += 1
    return sequence


def remove_sequence(state: EngineState, sequence: SequenceState) -> None:
    del state.sequences[sequence.seq_id]
    state.num_by_status[sequence.status] -= 1
    request = state.requests[sequence.request_id]
    request.seq_ids.remove(sequence.seq_id)


def _set_status(state: EngineState, sequence: SequenceState, status: SequenceStatus) -> None:
    state.num_by_status[sequence.status] -= 1
    state.num_by_status[status] += 1
    sequence.status = status


def _close_span(request: RequestState, time: float) -> None:
    last = request.spans[-1]
    if last.end is None:
        last.end = time
