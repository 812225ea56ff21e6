"""Applies events to an engine's state. This is the only code that writes one.

Events come from the network, so nothing here relies on their consistency: an update for an unknown
sequence is counted as an anomaly and otherwise ignored.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import assert_never

from seqtop.sequence import (
    SequenceData,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.state import decodes, waits
from seqtop.state.finished import copy_finished, evict_finished
from seqtop.state.model import CachedBlock, EngineData, RequestState, SequenceState, Span, SpanKind
from seqtop.state.sequence_updates import (
    clear_output,
    close_span,
    joint_lengths,
    new_request,
    new_sequence,
    set_status,
    update_sequence,
)
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
    StreamingUpdate,
)


def apply(state: EngineData, event: Event) -> Iterable[int]:
    """Changes `state` by one event.

    Returns:
        The ids of the sequences that changed, arrived or left.
    """
    match event:
        case Step():
            return _apply_step(state, event)
        case RequestArrived():
            return add_arrival(state, event)
        case StreamingUpdate():
            return _apply_streaming_update(state, event)
        case RequestFinished():
            return _apply_finish(state, event)
        case Heartbeat():
            state.time = max(state.time, event.time)
        case EngineInfo():
            state.info = event
            state.time = max(state.time, event.start_time)
        case EngineStopped():
            state.stopped = event.reason or "the engine stopped"
            state.time = max(state.time, event.time)
        case _:
            assert_never(event)
    return ()


def add_arrival(state: EngineData, event: RequestArrived) -> Iterable[int]:
    """Adds a request and its sequences; returns the ids of the sequences."""
    if event.request_id in state.requests:
        state.report_anomaly(f"request {event.request_id} arrived twice")
        return ()
    request = new_request(state, event.request_id, event.arrival_time)
    request.num_prompt_tokens = event.num_prompt_tokens
    request.prompt = event.prompt
    request.prompt_token_ids = Ints.of(event.prompt_token_ids)
    request.sampling_params = event.sampling_params
    request.pooling_params = event.pooling_params
    request.priority = event.priority
    request.lora = event.lora
    request.parent_request_id = event.parent_request_id
    state.num_queued += 1
    request.queue_turn = state.num_queued
    if event.metrics is not None:
        request.metrics = event.metrics
    for seq_id in event.seq_ids:
        if seq_id in state.sequences:
            state.report_anomaly(f"sequence {seq_id} announced twice")
        else:
            new_sequence(state, request, seq_id).engine_status = event.engine_status
    state.time = max(state.time, event.arrival_time)
    return request.seq_ids


def _apply_streaming_update(state: EngineData, event: StreamingUpdate) -> Iterable[int]:
    request = state.requests.get(event.request_id)
    if request is None or request.finish_reason is not None:
        state.report_anomaly(f"input for unknown or ended request {event.request_id}")
        return ()
    request.num_prompt_tokens = event.num_prompt_tokens
    request.prompt = event.prompt
    request.prompt_token_ids = Ints.of(event.prompt_token_ids)
    close_span(state, request, event.time)
    request.spans.append(Span("queued", start=event.time, end=None))
    waits.begin_wait(state, request, event.time)
    for seq_id in request.seq_ids:
        sequence = state.sequences[seq_id]
        sequence.num_prompt_tokens = event.num_prompt_tokens
        sequence.num_prompt_hits = min(sequence.num_prompt_hits, event.num_prompt_tokens)
        sequence.num_computed_tokens = event.num_computed_tokens
        clear_output(sequence)
        sequence.engine_status = ""
        set_status(state, sequence, SequenceStatus.WAITING)
    state.time = max(state.time, event.time)
    return request.seq_ids


def _apply_step(state: EngineData, step: Step) -> Iterable[int]:
    copy_finished(state, step)
    waits.advance(state, step)
    for preemption in step.preemptions:  # first: the same step may admit the request again
        _apply_preemption(state, step, preemption)
    # A stream of plain vLLM deltas has no updates: then tokens are read from the deltas.
    bare = not step.sequences and step.decodes is None
    touched: list[int] = []
    for group in step.execute.seq_group_metadata_list:
        if isinstance(group, SequenceGroupMetadata):
            touched += _apply_full(state, step, group, bare=bare)
        else:
            touched += _apply_delta(state, step, group, bare=bare)
    host_tables = _host_tables(state, step) if step.execute.blocks_to_swap_out else {}
    for update in step.sequences:
        _update_host_table(state, update, host_tables)
        update_sequence(state, update, step=step.step, time=step.time)
        _count_extra_tokens(state, update)
        touched.append(update.seq_id)
    # After the rows: a fork starts from its parent as it was before the step.
    if step.decodes is not None:
        touched += decodes.apply(state, step, step.decodes)
    touched += _update_wait_reasons(state, step)
    waits.block(state, step)
    if step.newly_cached_blocks is not None:
        _update_prefix_cache(state, step.newly_cached_blocks, step.uncached_blocks)
    for request_id, metrics in step.metrics.items():
        if request := state.requests.get(request_id):
            request.metrics = metrics
    state.step = step.step
    state.time = max(state.time, step.time)
    state.stats = step.stats
    state.num_steps_seen += 1
    state.num_prefill_tokens += step.stats.num_prefill_tokens
    return touched


def _update_prefix_cache(state: EngineData, added: list[CachedBlocks], removed: list[int]) -> None:
    """Removes and adds blocks of the prefix cache."""
    cached = state.cached_blocks
    if cached is None:
        cached = state.cached_blocks = {}
    for block in removed:
        if cached.pop(block, None) is None:
            state.report_anomaly(f"the prefix cache dropped block {block}, which was not in it")
    cached |= cached_by_block(added)


def cached_by_block(runs: list[CachedBlocks]) -> dict[int, CachedBlock]:
    """Returns the cached blocks of `runs`, one entry per block."""
    return {
        block: CachedBlock(run.request_id, run.seq_id, position)
        for run in runs
        for position, block in enumerate(run.blocks, run.position)
    }


def _update_wait_reasons(state: EngineData, step: Step) -> Iterable[int]:
    """Sets the reasons to wait; a reason that is not repeated is cleared."""
    touched: list[int] = []
    for request_id in state.wait_reason_ids:
        if request := state.requests.get(request_id):
            request.wait_reason = None
            touched += request.seq_ids
    state.wait_reason_ids = [reason.request_id for reason in step.wait_reasons]
    for reason in step.wait_reasons:
        if request := state.requests.get(reason.request_id):
            request.wait_reason = reason
            touched += request.seq_ids
    return touched


def _apply_full(
    state: EngineData, step: Step, group: SequenceGroupMetadata, *, bare: bool
) -> Iterable[int]:
    request = state.requests.get(group.request_id)
    if request is None:
        # Plain vLLM announces no arrivals, so the metadata stands for one.
        request = new_request(state, group.request_id, step.start_time)
    request.sampling_params = group.sampling_params
    request.pooling_params = group.pooling_params
    for seq_id, data in group.seq_data.items():
        sequence = state.sequences.get(seq_id) or new_sequence(state, request, seq_id)
        _correct(request, sequence, data)
        sequence.block_table = group.block_tables.get(seq_id, [])
        set_status(state, sequence, SequenceStatus.RUNNING)
        sequence.last_step = step.step
    _count_step(state, request, step, is_prompt=group.is_prompt, chunk=group.token_chunk_size)
    return group.seq_data if bare else ()


def _correct(request: RequestState, sequence: SequenceState, data: SequenceData) -> None:
    """Overwrites the results of updates by the full data."""
    sequence.num_prompt_tokens = request.num_prompt_tokens = data.get_prompt_len()
    sequence.num_computed_tokens = data.get_num_computed_tokens()
    sequence.num_cached_tokens = data.get_num_cached_tokens()
    if not request.num_preemptions:
        sequence.num_prompt_hits = min(sequence.num_cached_tokens, sequence.num_prompt_tokens)
    sequence.cumulative_logprob = data.cumulative_logprob
    if data.get_output_len() != len(sequence.output_token_ids):
        sequence.output_token_ids = Ints.of(data.output_token_ids)
        lengths = joint_lengths(data.get_output_len(), len(sequence.text))
        sequence.text_lengths = Ints("b").plus(lengths)
    if not request.prompt_token_ids:
        request.prompt_token_ids = Ints.of(data.prompt_token_ids)


def _apply_delta(
    state: EngineData, step: Step, group: SequenceGroupMetadataDelta, *, bare: bool
) -> Iterable[int]:
    request = state.requests.get(group.request_id)
    if request is None:
        state.report_anomaly(f"delta for unknown request {group.request_id}")
        return ()
    _count_step(state, request, step, is_prompt=group.is_prompt, chunk=group.token_chunk_size)
    for seq_id, table in group.block_tables.items():
        if sequence := state.sequences.get(seq_id):
            sequence.block_table = table
    if not bare:
        return ()
    for seq_id, data in group.seq_data_delta.items():
        sequence = state.sequences.get(seq_id)
        if sequence is None:
            state.report_anomaly(f"delta for unknown sequence {seq_id}")
            continue
        new_ids = data.new_output_token_ids
        sequence.output_token_ids = sequence.output_token_ids.plus(new_ids)
        sequence.text_lengths = sequence.text_lengths.plus([0] * len(new_ids))
        sequence.num_computed_tokens = data.new_num_computed_tokens
        sequence.cumulative_logprob = data.new_cumulative_logprob
        sequence.last_step = step.step
        set_status(state, sequence, SequenceStatus.RUNNING)
    return group.seq_data_delta


def _count_step(
    state: EngineData, request: RequestState, step: Step, *, is_prompt: bool, chunk: int | None
) -> None:
    """Adds one step to the figures of a request that was in its batch."""
    request.token_chunk_size = chunk or 1
    request.num_scheduled_steps += 1
    metrics, stats = request.metrics, step.stats
    metrics.scheduler_time = (metrics.scheduler_time or 0.0) + stats.scheduler_time
    metrics.model_forward_time = _add_known(metrics.model_forward_time, stats.model_forward_time)
    metrics.model_execute_time = _add_known(metrics.model_execute_time, stats.model_execute_time)
    kind: SpanKind = "prefill" if is_prompt else "decode"
    last = request.spans[-1]
    if kind == "decode" and last.kind == "decode":
        span = last
    else:
        close_span(state, request, step.start_time)
        span = Span(kind, start=step.start_time, end=None)
        request.spans.append(span)
    # Each prefill chunk is a span of its own; consecutive decode steps share one.
    span.end = step.time
    span.num_steps += 1
    span.num_tokens += request.token_chunk_size


def _count_extra_tokens(state: EngineData, update: SequenceUpdate) -> None:
    """Counts tokens beyond the announced chunk, as a step of several iterations has them."""
    sequence = state.sequences.get(update.seq_id)
    request = state.requests.get(sequence.request_id) if sequence else None
    if request is not None and request.spans[-1].kind == "decode":
        ahead = len(update.new_token_ids) - request.token_chunk_size
        request.spans[-1].num_tokens += max(ahead, 0)


def _add_known(total: float | None, more: float | None) -> float | None:
    """Returns the sum; an unknown addend changes nothing, so an unknown total stays unknown."""
    return total if more is None else (total or 0.0) + more


def _host_tables(state: EngineData, step: Step) -> dict[int, list[int]]:
    """Returns the host blocks of the sequences that a step swaps out, by sequence id.

    No message has tables of host blocks. The step lists the pairs of blocks in the order of its
    preemptions; a block that several preempted requests share is in one pair for each.
    """
    copies: defaultdict[int, deque[int]] = defaultdict(deque)
    for block, host_block in step.execute.blocks_to_swap_out:
        copies[block].append(host_block)
    tables: dict[int, list[int]] = {}
    swapped = dict.fromkeys(each.request_id for each in step.preemptions if each.mode == "swap")
    for request in filter(None, map(state.requests.get, swapped)):
        own: dict[int, int] = {}
        for seq_id in request.seq_ids:
            table = state.sequences[seq_id].block_table
            for block in table:
                if block not in own and copies.get(block):
                    own[block] = copies[block].popleft()
            tables[seq_id] = [own[block] for block in table if block in own]
    return tables


def _update_host_table(
    state: EngineData, update: SequenceUpdate, host_tables: dict[int, list[int]]
) -> None:
    """Records the host blocks of a sequence that is swapped out, and removes those of others."""
    sequence = state.sequences.get(update.seq_id)
    if sequence is None:
        return
    if update.status is not SequenceStatus.SWAPPED:
        sequence.host_table = []
    elif table := host_tables.get(update.seq_id):
        sequence.host_table = table


def _apply_preemption(state: EngineData, step: Step, preemption: Preemption) -> None:
    request = state.requests.get(preemption.request_id)
    if request is None:
        state.report_anomaly(f"preemption of unknown request {preemption.request_id}")
        return
    request.num_preemptions += 1
    state.num_queued += 1
    request.queue_turn = -state.num_queued
    request.num_lost_tokens += preemption.num_lost_tokens
    request.last_preemption_mode = preemption.mode
    request.preempted_for = preemption.for_request_id
    request.preemption_steps.append(step.step)
    close_span(state, request, step.start_time)
    kind: SpanKind = "swapped" if preemption.mode == "swap" else "preempted"
    request.spans.append(Span(kind, start=step.start_time, end=None))
    waits.begin_wait(state, request, step.start_time)


def _apply_finish(state: EngineData, event: RequestFinished) -> Iterable[int]:
    request = state.requests.get(event.request_id)
    if request is None or request.finish_reason is not None:
        state.report_anomaly(f"end of unknown or ended request {event.request_id}")
        return ()
    seq_ids = _rank_sequences(state, request, event.seq_ids)
    for seq_id in request.seq_ids:
        sequence = state.sequences[seq_id]
        if not SequenceStatus.is_finished(sequence.status):
            set_status(state, sequence, event.status)
            sequence.block_table, sequence.group_block_tables = [], []
            sequence.host_table = []
    request.metrics = event.metrics
    if event.metrics.finished_time is None:  # not every engine reports it
        event.metrics.finished_time = event.time
    request.finish_reason = SequenceStatus.get_finished_reason(event.status) or "stop"
    close_span(state, request, event.time)
    request.wait_reason = None
    state.time = max(state.time, event.time)
    return [*seq_ids, *evict_finished(state, event.request_id)]


def _rank_sequences(state: EngineData, request: RequestState, ranking: list[int]) -> list[int]:
    """Orders a request's sequences by `ranking` and drops those that are not in it.

    An empty ranking changes nothing. Returns the ids of all sequences from before.
    """
    seq_ids = request.seq_ids
    if ranking and ranking != seq_ids:
        existing = {*seq_ids}
        request.seq_ids = [seq_id for seq_id in dict.fromkeys(ranking) if seq_id in existing]
        for seq_id in existing.difference(ranking):
            state.num_by_status[state.sequences.pop(seq_id).status] -= 1
    return seq_ids
