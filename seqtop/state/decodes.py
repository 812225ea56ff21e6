"""Applies the decodes of a step, which are in columns: the loop that runs for every token.

The resulting state equals the one that a delta and a `SequenceUpdate` per decode would produce. So
this module repeats, inlined for speed, what `reducer` and `sequence_updates` do for one row.
"""

from itertools import repeat

from seqtop.sequence import SequenceStatus
from seqtop.state.model import EngineData, Span
from seqtop.state.sequence_updates import close_span
from seqtop.wire.messages import Decodes, Step

_RUNNING = SequenceStatus.RUNNING


def apply(state: EngineData, step: Step, decodes: Decodes) -> list[int]:
    """Appends one token to each sequence of `decodes`.

    A sequence that is not running, or that the step names twice, counts as an anomaly and stays
    unchanged.

    Returns:
        The ids of the sequences that got their token.
    """
    named = {update.seq_id for update in step.sequences}
    in_columns = set(decodes.seq_ids)
    has_duplicates = len(in_columns) < len(decodes.seq_ids)
    stats, number, start, end = step.stats, step.step, step.start_time, step.time
    scheduling, forward, executing = (
        stats.scheduler_time, stats.model_forward_time, stats.model_execute_time
    )  # fmt: skip
    sequences, requests = state.sequences, state.requests
    touched: list[int] = []
    for seq_id, token_id, delta, logprob in zip(
        decodes.seq_ids,
        decodes.new_token_ids,
        decodes.text_deltas,
        decodes.new_logprobs or repeat(None),
        strict=False,
    ):
        sequence = sequences.get(seq_id)
        if sequence is None or sequence.status is not _RUNNING or seq_id in named:
            _report_anomaly(state, seq_id, twice=seq_id in named)
            continue
        if has_duplicates:
            named.add(seq_id)
        request = requests[sequence.request_id]
        if request.finish_reason is not None:
            # It may be shared with other states (`finished`), which must not change.
            _report_anomaly(state, seq_id, twice=False)
            continue
        request.token_chunk_size = 1
        request.num_scheduled_steps += 1
        metrics = request.metrics
        metrics.last_token_time = end
        metrics.scheduler_time = (metrics.scheduler_time or 0.0) + scheduling
        if forward is not None:  # an unknown total stays unknown
            metrics.model_forward_time = (metrics.model_forward_time or 0.0) + forward
        if executing is not None:
            metrics.model_execute_time = (metrics.model_execute_time or 0.0) + executing
        span = request.spans[-1]
        if span.kind != "decode":
            close_span(state, request, start)
            span = Span("decode", start=start, end=None)
            request.spans.append(span)
        span.end = end
        span.num_steps += 1
        span.num_tokens += 1

        try:
            sequence.output_token_ids.append(token_id)
        except OverflowError:
            sequence.output_token_ids = sequence.output_token_ids.plus([token_id])
        if logprob is not None:
            logprobs = sequence.output_logprobs
            logprobs.append(logprob)
            if logprobs[-1] != logprob:  # more than single precision
                logprobs.pop()
                sequence.output_logprobs = logprobs.plus([logprob])
            sequence.cumulative_logprob += logprob
        if delta:
            # CPython extends a string in place while there is only one reference to it.
            text = sequence.text
            sequence.text = ""
            text += delta
            sequence.text = text
            sequence.last_delta_length = len(delta)
        try:
            sequence.text_lengths.append(len(delta))
        except OverflowError:
            sequence.text_lengths = sequence.text_lengths.plus([len(delta)])
        sequence.num_computed_tokens += 1
        if sequence.host_table:
            sequence.host_table = []
        sequence.engine_status = ""
        sequence.last_step = number
        touched.append(seq_id)
    state.num_output_tokens += len(touched)
    new_blocks = decodes.new_blocks
    if len(touched) < len(decodes.seq_ids) or not in_columns.issuperset(new_blocks):
        new_blocks = _applicable_blocks(state, new_blocks, in_columns, {*touched})
    for seq_id, block in new_blocks.items():
        sequences[seq_id].block_table.append(block)
    return touched


def _applicable_blocks(
    state: EngineData, new_blocks: dict[int, int], in_columns: set[int], appended: set[int]
) -> dict[int, int]:
    for seq_id in new_blocks.keys() - in_columns:
        state.report_anomaly(f"a block for sequence {seq_id}, which is not in the columns")
    return {seq_id: block for seq_id, block in new_blocks.items() if seq_id in appended}


def _report_anomaly(state: EngineData, seq_id: int, *, twice: bool) -> None:
    if twice:
        state.report_anomaly(f"a step names sequence {seq_id} twice")
    elif seq_id in state.sequences:
        state.report_anomaly(f"decode of sequence {seq_id}, which is not running")
    else:
        state.report_anomaly(f"decode of unknown sequence {seq_id}")
