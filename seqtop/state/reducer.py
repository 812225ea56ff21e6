"""Applies events to an engine's state. This is the only code that writes one.

Events come from the network, so nothing here relies on their consistency: an update for an unknown
sequence is counted as an anomaly and otherwise ignored. No event is changed: it may be applied to
several states.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from copy import copy

from seqtop.sequence import (
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.state import harm, limits, step_costs, waits
from seqtop.state.finished import copy_finished, evict_finished
from seqtop.state.harm import StepHarm
from seqtop.state.holdings import update_holders
from seqtop.state.model import (
    MAX_CACHED_BLOCKS,
    CachedBlock,
    EngineData,
    RequestState,
    SequenceState,
)
from seqtop.state.sequence_updates import (
    change_engine_status,
    clear_output,
    close_span,
    joint_lengths,
    large_forks,
    new_request,
    new_sequence,
    set_status,
    update_sequence,
)
from seqtop.state.step_costs import OwnTimes
from seqtop.wire.arrays import Ints
from seqtop.wire.batch import block_moves
from seqtop.wire.messages import (
    CachedBlocks,
    Preemption,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StreamingUpdate,
)
from seqtop.wire.snapshot import Span, SpanKind


def add_arrival(state: EngineData, event: RequestArrived) -> Iterable[int]:
    """Adds a request and its sequences; returns the ids of the sequences."""
    if event.request_id in state.requests:
        state.report_anomaly(f"request {event.request_id} arrived twice")
        return ()
    before = next(reversed(state.requests.values()), None)
    request = new_request(state, event.request_id, event.arrival_time)
    request.is_announced = True
    request.num_prompt_tokens = event.num_prompt_tokens
    request.is_prompt_partial = event.is_prompt_partial
    request.prompt = event.prompt
    request.prompt_token_ids = event.prompt_token_ids
    request.sampling_params = event.sampling_params
    if before and before.sampling_params == event.sampling_params:
        # Most requests of a load have the same: thousands of objects fewer for the collector.
        request.sampling_params = before.sampling_params
    request.pooling_params = event.pooling_params
    request.priority = event.priority
    request.lora = event.lora
    request.cache_salt = event.cache_salt
    request.traceparent = event.traceparent
    request.transfer_id = event.transfer_id
    request.num_encoder_inputs = event.num_encoder_inputs
    request.parent_request_id = event.parent_request_id
    state.num_queued += 1
    request.queue_turn = state.num_queued
    if event.metrics is not None:
        request.metrics = copy(event.metrics)
    for seq_id in event.seq_ids:
        if seq_id in state.sequences:
            state.report_anomaly(f"sequence {seq_id} announced twice")
        elif (sequence := new_sequence(state, request, seq_id)) and event.engine_status:
            change_engine_status(state, sequence, event.engine_status)
    state.time = max(state.time, event.arrival_time)
    return request.seq_ids


def apply_streaming_update(state: EngineData, event: StreamingUpdate) -> Iterable[int]:
    """Adds more input to a streaming session; returns the ids of its sequences."""
    request = state.requests.get(event.request_id)
    if request is None or request.finish_reason is not None:
        state.report_anomaly(f"input for unknown or ended request {event.request_id}")
        return ()
    request.num_prompt_tokens = event.num_prompt_tokens
    request.prompt = event.prompt
    request.prompt_token_ids = event.prompt_token_ids
    request.renewed_arrival_time = event.arrival_time
    request.last_preemption_mode = request.preempted_for = None  # the new prefill is its own
    # Input that came during the step ends a wait that begins with the end of the step.
    close_span(state, request, max(event.time, request.spans[-1].start))
    request.spans.append(Span("queued", start=event.time, end=None))
    waits.join_queue(state, request, event.time)
    for seq_id in request.seq_ids:
        sequence = state.sequences[seq_id]
        sequence.num_prompt_tokens = event.num_prompt_tokens
        sequence.num_prompt_hits = min(sequence.num_prompt_hits, event.num_prompt_tokens)
        sequence.num_computed_tokens = event.num_computed_tokens
        clear_output(sequence)
        waits.count_parked(state, sequence, -1)
        sequence.engine_status = ""
        set_status(state, sequence, SequenceStatus.WAITING)
    waits.update_queue(state, request)
    update_holders(state, request)
    state.time = max(state.time, event.time)
    return request.seq_ids


def apply_step(state: EngineData, step: Step) -> Iterable[int]:
    """Changes the state by a step; returns the ids of the sequences that changed."""
    copy_finished(state, step)
    end_before = state.blocked.until
    delays = StepHarm(state, step)
    waits.advance(state, step)
    for preemption in step.preemptions:  # first: the same step may admit the request again
        _apply_preemption(state, step, preemption)
    touched = dict.fromkeys(_run_batch(state, step))
    swapped_out = block_moves(step).swapped_out
    host_tables = _host_tables(state, step, swapped_out) if swapped_out else {}
    too_large = large_forks(state, step.sequences)
    parked: list[int] = []
    for update in step.sequences:
        if update.status is not None:
            _update_host_table(state, update, host_tables)
            if waits.is_parked(update):
                parked.append(update.seq_id)
        is_large = update.seq_id in too_large
        update_sequence(state, update, step=step.step, time=step.time, is_large=is_large)
        if len(update.new_token_ids) > 1:
            _count_extra_tokens(state, update)
        touched[update.seq_id] = None
    touched |= dict.fromkeys(_update_wait_reasons(state, step))
    touched |= dict.fromkeys(harm.charge(state, step, delays))
    step_costs.count_step(state, step)
    waits.block(state, step)
    for seq_id in parked:
        _park(state, seq_id, step, end_before)
    if step.newly_cached_blocks is not None:
        _update_prefix_cache(state, step.newly_cached_blocks, step.uncached_blocks)
    for request_id, metrics in step.metrics.items():
        if request := state.requests.get(request_id):
            request.metrics = copy(metrics)
    state.step = step.step
    state.time = max(state.time, step.time)
    limits.add_step(state, step, end_before)
    state.stats = step.stats
    state.num_steps_seen += 1
    state.num_prefill_tokens += step.stats.num_prefill_tokens
    return touched


def _run_batch(state: EngineData, step: Step) -> Iterable[int]:
    """Advances the sequences in the batch of a step; returns their ids."""
    touched: list[int] = []
    times = step_costs.own_times_of(step, state.blocked.until)
    if step.execute is None:
        _run_chunks(state, step, times, touched)
        return touched
    for group in step.execute.seq_group_metadata_list:
        if isinstance(group, SequenceGroupMetadataDelta):
            _apply_delta(state, step, times, group, touched)
        else:
            _apply_full(state, step, times, group, touched)
    return touched


def _run_chunks(state: EngineData, step: Step, times: OwnTimes, touched: list[int]) -> None:
    """Advances the sequences of an engine that has no `SequenceGroupMetadata`."""
    counted: set[str] = set()
    for update in step.sequences:
        chunk, request = update.chunk, state.requests.get(update.request_id or "")
        if chunk is None or request is None:
            continue  # if it is unknown, the update is an anomaly
        if _has_ended(state, request, step):
            continue
        if request.request_id not in counted:
            counted.add(request.request_id)
            is_prompt, num_tokens = chunk.is_prompt, chunk.num_tokens
            _count_step(state, request, step, times, is_prompt=is_prompt, chunk=num_tokens)
        sequence = state.sequences.get(update.seq_id)
        if sequence is not None and sequence.request_id != request.request_id:
            state.report_anomaly(f"chunk for sequence {update.seq_id} of another request")
        elif sequence is not None:
            num_computed = chunk.num_computed_tokens + chunk.num_tokens
            _advance(state, sequence, step, num_computed)
            touched.append(update.seq_id)


def _has_ended(state: EngineData, request: RequestState, step: Step) -> bool:
    """Returns whether a request in the batch has ended, an anomaly if it was before the step."""
    if request.finish_reason is None:
        if request.metrics.finished_time is None:
            return False
        # Its end may have been announced while a KV connector still holds its blocks.
        statuses = [state.sequences[seq_id].status for seq_id in request.seq_ids]
        if not all(map(SequenceStatus.is_finished, statuses)):
            return False
    if not request.ended_after(step.start_time):
        state.report_anomaly(f"request {request.request_id} ran after its end")
    return True


def _advance(
    state: EngineData, sequence: SequenceState, step: Step, num_computed_tokens: int
) -> None:
    """Records that a sequence ran in a step."""
    sequence.num_computed_tokens = num_computed_tokens
    sequence.last_step = step.step
    if sequence.host_table:  # in most steps it stays as it is, and is no new object
        sequence.host_table = []
    if sequence.status is not SequenceStatus.RUNNING:
        set_status(state, sequence, SequenceStatus.RUNNING)
    if sequence.engine_status:
        change_engine_status(state, sequence, "")


def _update_prefix_cache(state: EngineData, added: list[CachedBlocks], removed: list[int]) -> None:
    """Removes and adds blocks of the prefix cache."""
    cached = state.cached_blocks
    if cached is None:
        cached = state.cached_blocks = {}
    for block in removed:
        if cached.pop(block, None) is None:
            state.report_anomaly(f"the prefix cache dropped block {block}, which was not in it")
    for run in added:
        add_cached_blocks(state, cached, run)


def add_cached_blocks(state: EngineData, cached: dict[int, CachedBlock], run: CachedBlocks) -> None:
    """Adds a run of blocks to those in the prefix cache of `state`, unless there are too many."""
    if len(cached) + len(run.blocks) > MAX_CACHED_BLOCKS:
        state.report_anomaly(f"the prefix cache has more than {MAX_CACHED_BLOCKS:,} blocks")
        return
    for position, block in enumerate(run.blocks, run.position):
        cached[block] = CachedBlock(run.request_id, run.seq_id, position)


def _update_wait_reasons(state: EngineData, step: Step) -> Iterable[int]:
    """Sets the reasons to wait; a reason that is not repeated is cleared."""
    touched: list[int] = []
    # A request that is named twice counts once: it may have many sequences.
    for request_id in dict.fromkeys(state.wait_reason_ids):
        if request := state.requests.get(request_id):
            request.wait_reason = None
            touched += request.seq_ids
    reasons = {reason.request_id: reason for reason in step.wait_reasons}
    state.wait_reason_ids = list(reasons)
    for request_id, reason in reasons.items():
        if request := state.requests.get(request_id):
            request.wait_reason = reason
            touched += request.seq_ids
    return touched


def _apply_full(
    state: EngineData,
    step: Step,
    times: OwnTimes,
    group: SequenceGroupMetadata,
    touched: list[int],
) -> None:
    request = state.requests.get(group.request_id)
    if request is None:
        # Plain vLLM announces no arrivals, so the metadata stands for one.
        request = new_request(state, group.request_id, step.start_time)
    if _has_ended(state, request, step):
        return
    if request.sampling_params != group.sampling_params:
        request.sampling_params = group.sampling_params
    request.pooling_params = group.pooling_params
    chunk = group.token_chunk_size or 1
    _count_step(state, request, step, times, is_prompt=group.is_prompt, chunk=chunk)
    for seq_id, data in group.seq_data.items():
        sequence = state.sequences.get(seq_id) or new_sequence(state, request, seq_id)
        if sequence is None:
            continue
        if sequence.request_id != request.request_id:
            state.report_anomaly(f"metadata for sequence {seq_id} of another request")
            continue
        _correct(request, sequence, data)
        sequence.block_table[:] = group.block_tables.get(seq_id, ())
        _advance(state, sequence, step, data.get_num_computed_tokens() + chunk)
    touched += group.seq_data


def _correct(request: RequestState, sequence: SequenceState, data: SequenceData) -> None:
    """Overwrites the results of updates by the full data."""
    sequence.num_prompt_tokens = request.num_prompt_tokens = data.get_prompt_len()
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
    state: EngineData,
    step: Step,
    times: OwnTimes,
    group: SequenceGroupMetadataDelta,
    touched: list[int],
) -> None:
    request = state.requests.get(group.request_id)
    if request is None:
        state.report_anomaly(f"delta for unknown request {group.request_id}")
        return
    if _has_ended(state, request, step):
        return
    chunk = group.token_chunk_size or 1
    _count_step(state, request, step, times, is_prompt=group.is_prompt, chunk=chunk)
    for seq_id, data in group.seq_data_delta.items():
        sequence = state.sequences.get(seq_id)
        if sequence is None or sequence.request_id != request.request_id:
            state.report_anomaly(f"delta for unknown sequence {seq_id}")
            continue
        if not request.is_announced:
            _read_output(sequence, data)
        if table := group.block_tables.get(seq_id):
            sequence.block_table[:] = table
        _advance(state, sequence, step, data.new_num_computed_tokens + chunk)
        touched.append(seq_id)


def _read_output(sequence: SequenceState, data: SequenceDataDelta) -> None:
    """Appends the output of a delta, for a stream of plain vLLM that has no updates."""
    new_ids = data.new_output_token_ids
    sequence.output_token_ids = sequence.output_token_ids.plus(new_ids)
    sequence.text_lengths = sequence.text_lengths.plus([0] * len(new_ids))
    sequence.cumulative_logprob = data.new_cumulative_logprob


def _count_step(
    state: EngineData,
    request: RequestState,
    step: Step,
    times: OwnTimes,
    *,
    is_prompt: bool,
    chunk: int,
) -> None:
    """Adds one step to the figures of a request that was in its batch.

    Args:
        state: The state.
        request: The request.
        step: The step.
        times: Its times without those of the step before.
        is_prompt: Whether it computed tokens of the prompt.
        chunk: The tokens by which it advanced.
    """
    request.token_chunk_size = chunk
    request.num_scheduled_steps += 1
    step_costs.charge_times(request.metrics, times)
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


def _host_tables(
    state: EngineData, step: Step, swapped_out: list[tuple[int, int]]
) -> dict[int, list[int]]:
    """Returns the host blocks of the sequences that a step swaps out, by sequence id.

    No message has tables of host blocks. The step lists the pairs of blocks in the order of its
    preemptions; a block that several preempted requests share is in one pair for each.
    """
    copies: defaultdict[int, deque[int]] = defaultdict(deque)
    for block, host_block in swapped_out:
        copies[block].append(host_block)
    tables: dict[int, list[int]] = {}
    swapped = dict.fromkeys(
        preemption.request_id for preemption in step.preemptions if preemption.mode == "swap"
    )
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
    """Records the host blocks of a sequence that is swapped out, and removes those of others.

    Args:
        state: The state.
        update: The update of the sequence, with its new status.
        host_tables: The host blocks of the sequences that the step swaps out.
    """
    sequence = state.sequences.get(update.seq_id)
    if sequence is None:
        return
    if update.status is SequenceStatus.SWAPPED:
        if table := host_tables.get(update.seq_id):
            sequence.host_table = table
    else:
        sequence.host_table = []


def queue_preempted(state: EngineData, request: RequestState) -> None:
    """Puts a preempted request into the queue."""
    state.num_queued += 1
    order = state.info.queue_order if state.info is not None else "fcfs"
    is_last = order in ("preempted_last", "unknown")
    request.queue_turn = state.num_queued if is_last else -state.num_queued


def _apply_preemption(state: EngineData, step: Step, preemption: Preemption) -> None:
    request = state.requests.get(preemption.request_id)
    if request is None:
        state.report_anomaly(f"preemption of unknown request {preemption.request_id}")
        return
    request.num_preemptions += 1
    queue_preempted(state, request)
    request.num_lost_tokens += preemption.num_lost_tokens
    request.last_preemption_mode = preemption.mode
    request.preempted_for = preemption.for_request_id
    request.preemption_steps.append(step.step)
    close_span(state, request, step.start_time)
    kind: SpanKind = "swapped" if preemption.mode == "swap" else "preempted"
    request.spans.append(Span(kind, start=step.start_time, end=None))
    waits.begin_wait(state, request, max(step.start_time, state.blocked.until))


def _park(state: EngineData, seq_id: int, step: Step, end_before: float) -> None:
    """Begins the wait of a request that ran until now, such as that of a session for its client.

    Args:
        state: The state.
        seq_id: Its sequence.
        step: The step that says so.
        end_before: The end of the step before, epoch seconds.
    """
    sequence = state.sequences.get(seq_id)
    request = None if sequence is None else state.requests[sequence.request_id]
    if request is None or request.finish_reason is not None or request.wait.since is not None:
        return
    has_run = request.spans[-1].end == step.time
    time = step.time if has_run else max(step.start_time, end_before)
    request.spans.append(Span("queued", start=time, end=None))
    waits.begin_wait(state, request, time)


def apply_finish(state: EngineData, event: RequestFinished) -> Iterable[int]:
    """Ends a request; returns the ids of its sequences, and of those that leave for it."""
    request = state.requests.get(event.request_id)
    if request is None or request.finish_reason is not None:
        state.report_anomaly(f"end of unknown or ended request {event.request_id}")
        return ()
    waits.count_until(state, event.time)
    seq_ids = _rank_sequences(state, request, event.seq_ids)
    for seq_id in request.seq_ids:
        sequence = state.sequences[seq_id]
        if not SequenceStatus.is_finished(sequence.status):
            set_status(state, sequence, event.status)
        # A connector may have kept the blocks of a sequence that had ended before.
        sequence.block_table, sequence.group_block_tables = [], []
        sequence.host_table = []
    request.metrics = copy(event.metrics)
    if request.metrics.finished_time is None:  # not every engine reports it
        request.metrics.finished_time = event.time
    request.finish_reason = SequenceStatus.get_finished_reason(event.status) or "stop"
    close_span(state, request, event.time)
    limits.add_end(state, request)
    request.wait_reason = None
    update_holders(state, request)
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
