"""Applies the updates of a step: one `SequenceUpdate` changes one sequence."""

from collections.abc import Sequence

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import holdings, waits
from seqtop.state.model import (
    MAX_SEQUENCES,
    MAX_SEQUENCES_OF_REQUEST,
    EngineData,
    RequestState,
    SequenceState,
)
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.state.wait_causes import SESSION_INPUT
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.messages import PrefixMiss, SequenceUpdate
from seqtop.wire.snapshot import Span

_MAX_DRAFT_POSITIONS = 64
"""Later positions in a draft are not counted."""

_FREE_FORKED_TOKENS = 2**18
_FORKED_PER_TOKEN = 4
_MAX_FORKED_TOKENS = 2**22
"""A fork copies the output of its parent, so a row of a few bytes may cost megabytes. All forks
together may hold the first number of tokens, and the second number for each received token, up to
the last number. Those of a beam search hold at most as many as were received."""
_CHARACTERS_PER_TOKEN = 8
"""Characters of text that count as much as a token."""


def large_forks(state: EngineData, updates: Sequence[SequenceUpdate]) -> set[int]:
    """Returns the new forks whose copies of their parents' outputs would be too large together."""
    forks = [
        update
        for update in updates
        if update.parent_seq_id is not None and update.seq_id not in state.sequences
    ]
    if not forks:
        return set()
    removed = {update.seq_id for update in updates if update.is_removed}
    allowed = _FREE_FORKED_TOKENS + _FORKED_PER_TOKEN * state.num_output_tokens
    left = min(allowed, _MAX_FORKED_TOKENS) - sum(
        _output_size(sequence)
        for sequence in state.sequences.values()
        if sequence.parent_seq_id is not None and sequence.seq_id not in removed
    )
    sizes: dict[int, int] = {}
    too_large: set[int] = set()
    for update in forks:
        parent = state.sequences.get(update.parent_seq_id or -1)
        size = sizes.get(update.parent_seq_id or -1, 0) if parent is None else _output_size(parent)
        if size > left:
            too_large.add(update.seq_id)
            size = 0
        left -= size
        sizes[update.seq_id] = size
    return too_large


def _output_size(sequence: SequenceState) -> int:
    """Returns the size of an output, in tokens."""
    return len(sequence.output_token_ids) + len(sequence.text) // _CHARACTERS_PER_TOKEN


def update_sequence(
    state: EngineData, update: SequenceUpdate, *, step: int, time: float, is_large: bool = False
) -> None:
    """Applies the update of one sequence, or adds a forked one.

    Args:
        state: The state to change.
        update: The changes. If its sequence and its request are unknown, it counts as an anomaly.
        step: The number of the step.
        time: The end of the step, epoch seconds.
        is_large: Whether it is one of the `large_forks`, which begin without an output.
    """
    sequence = state.sequences.get(update.seq_id)
    if sequence is None:
        request = state.requests.get(update.request_id or "")
        if request is None:
            state.report_anomaly(f"update for unknown sequence {update.seq_id}")
            return
        sequence = new_sequence(state, request, update.seq_id)
        if sequence is None:
            return
        if is_large:
            sequence.parent_seq_id = update.parent_seq_id
            state.report_anomaly(
                f"sequence {update.seq_id} begins without the output of its parent:"
                " all forks together hold too much"
            )
        else:
            _fork(state, sequence, update.parent_seq_id)
    if update.new_token_ids or update.text_delta:
        first = len(sequence.output_token_ids)
        if update.top_logprobs and state.keeps_candidates:
            if sequence.top_logprobs is None:
                sequence.top_logprobs = TopLogprobs()
            sequence.top_logprobs.set(first, update.top_logprobs)
        sequence.output_token_ids = sequence.output_token_ids.plus(update.new_token_ids)
        sequence.output_logprobs = sequence.output_logprobs.plus(update.new_logprobs)
        for (
            logprob
        ) in update.new_logprobs:  # one by one, in the order in which the engine adds them
            sequence.cumulative_logprob += logprob
        if update.text_delta:
            sequence.text += update.text_delta
            sequence.last_delta_length = len(update.text_delta)
        _append_text_lengths(sequence, update)
        state.num_output_tokens += len(update.new_token_ids)
        if update.new_token_ids and (request := state.requests.get(sequence.request_id)):
            request.metrics.last_token_time = time
    if update.block_table is not None:
        sequence.block_table[:] = update.block_table
    elif update.new_blocks:
        sequence.block_table += update.new_blocks
    if update.group_block_tables is not None:
        sequence.group_block_tables = update.group_block_tables
    if update.stop_reason is not None:
        sequence.stop_reason = update.stop_reason
    sequence.last_step = step
    _update_figures(state, sequence, update)
    has_moved = update.block_table is not None or update.group_block_tables is not None
    if update.engine_status != sequence.engine_status:
        change_engine_status(state, sequence, update.engine_status)
        has_moved = True
    if sequence.status is SequenceStatus.RUNNING and update.engine_status == SESSION_INPUT:
        state.num_queued += 1
        state.requests[sequence.request_id].queue_turn = state.num_queued
    if update.status is not None and update.status is not sequence.status:
        set_status(state, sequence, update.status)
        has_moved = True
    if update.is_removed:
        remove_sequence(state, sequence)
    elif has_moved:
        holdings.update_holders(state, state.requests[sequence.request_id])
    elif update.new_blocks:
        state.holders[sequence.request_id] = True


def _update_figures(state: EngineData, sequence: SequenceState, update: SequenceUpdate) -> None:
    """Updates the computed tokens of a sequence and where they came from, and the totals."""
    status = sequence.status if update.status is None else update.status
    if update.num_computed_tokens is not None:
        sequence.num_computed_tokens = update.num_computed_tokens
    if update.num_cached_tokens is not None:
        sequence.num_cached_tokens = update.num_cached_tokens
        num_preemptions = state.requests[sequence.request_id].num_preemptions
        if status is SequenceStatus.RUNNING and not num_preemptions:
            sequence.num_prompt_hits = min(update.num_cached_tokens, sequence.num_prompt_tokens)
    if update.num_external_tokens is not None:
        sequence.num_external_tokens = update.num_external_tokens
    if update.prefix_misses is not None:
        sequence.prefix_misses = update.prefix_misses
        _count_misses(state, update.prefix_misses)
    if update.num_draft_tokens is not None:
        drafted = (sequence.num_draft_tokens or 0) + update.num_draft_tokens
        sequence.num_draft_tokens = drafted
        accepted = (sequence.num_accepted_tokens or 0) + (update.num_accepted_tokens or 0)
        sequence.num_accepted_tokens = accepted
        _count_drafts(state, update.num_draft_tokens, update.num_accepted_tokens or 0)


def change_engine_status(state: EngineData, sequence: SequenceState, engine_status: str) -> None:
    """Sets the engine's own name for the status of a sequence."""
    request = state.requests[sequence.request_id]
    waits.change_engine_status(state, request)
    waits.count_parked(state, sequence, -1)
    sequence.engine_status = engine_status
    waits.count_parked(state, sequence, 1)
    waits.update_queue(state, request)


def _count_misses(state: EngineData, misses: list[PrefixMiss]) -> None:
    """Adds the tokens that were not found in the prefix cache to the totals by cause."""
    totals = state.num_missed_tokens.copy()  # frozen states share the dictionary
    for miss in misses:
        totals[miss.cause] = totals.get(miss.cause, 0) + miss.num_tokens
    state.num_missed_tokens = totals


def _count_drafts(state: EngineData, num_drafted: int, num_accepted: int) -> None:
    """Adds a draft to the totals by position."""
    num_positions = max(len(state.num_drafted), min(num_drafted, _MAX_DRAFT_POSITIONS))
    state.num_drafted = _plus(state.num_drafted, num_drafted, num_positions)
    state.num_accepted = _plus(state.num_accepted, num_accepted, num_positions)


def _plus(totals: list[int], length: int, num_positions: int) -> list[int]:
    """Returns a copy of `totals`, which frozen states share, with 1 added to the first `length`."""
    longer = [*totals, *[0] * (num_positions - len(totals))]
    return [number + (position < length) for position, number in enumerate(longer)]


def _fork(state: EngineData, sequence: SequenceState, parent_seq_id: int | None) -> None:
    """Starts a new sequence with the output of its parent so far."""
    sequence.parent_seq_id = parent_seq_id
    parent = state.sequences.get(-1 if parent_seq_id is None else parent_seq_id)
    if parent is None:
        return
    sequence.output_token_ids = parent.output_token_ids.copy()
    sequence.output_logprobs = parent.output_logprobs.copy()
    if parent.top_logprobs is not None:
        sequence.top_logprobs = parent.top_logprobs.copy()
    sequence.cumulative_logprob = parent.cumulative_logprob
    sequence.text = parent.text
    sequence.text_lengths = parent.text_lengths.copy()
    sequence.fork_length = sequence.num_tokens


def _append_text_lengths(sequence: SequenceState, update: SequenceUpdate) -> None:
    """Records the text lengths of the new tokens, as far as they can be determined."""
    lengths, length, count = (
        sequence.text_lengths,
        len(update.text_delta),
        len(update.new_token_ids),
    )
    if count == 1:
        new = [length]
    elif count:
        new = _decoded_lengths(update) or joint_lengths(count, length)
    elif lengths:  # text of the last token that the detokenizer had delayed
        new = [lengths.pop() + length]
    else:
        return
    sequence.text_lengths = lengths.plus(new)


def joint_lengths(count: int, length: int) -> list[int]:
    """Returns the text lengths of `count` tokens for which only the sum is known."""
    return [*[-1 if length else 0] * (count - 1), length] if count else []


def _decoded_lengths(update: SequenceUpdate) -> list[int] | None:
    """Returns the text length of each new token, if the candidates' texts make up the delta."""
    own = zip(update.new_token_ids, update.top_logprobs or (), strict=False)
    texts = [
        logprob.decoded_token or ""
        for token, candidates in own
        if (logprob := candidates.get(token))
    ]
    if len(texts) != len(update.new_token_ids) or "".join(texts) != update.text_delta:
        return None
    return [len(text) for text in texts]


def new_request(state: EngineData, request_id: str, arrival_time: float) -> RequestState:
    """Adds and returns a queued request without sequences."""
    metrics = RequestMetrics(
        arrival_time=arrival_time,
        last_token_time=arrival_time,
        first_scheduled_time=None,
        first_token_time=None,
        time_in_queue=None,
    )
    request = RequestState(request_id, metrics, seq_ids=[], harm=0.0)
    request.spans.append(Span("queued", start=arrival_time, end=None))
    state.requests[request_id] = request
    waits.join_queue(state, request, arrival_time)
    return request


def new_sequence(state: EngineData, request: RequestState, seq_id: int) -> SequenceState | None:
    """Adds a waiting sequence to `request` and returns it; `None`, an anomaly, if it has too many.

    A sequence takes some 800 bytes, and its id in a message may take one.
    """
    num_unfinished = len(state.sequences) - state.max_finished
    if len(request.seq_ids) >= MAX_SEQUENCES_OF_REQUEST or num_unfinished >= MAX_SEQUENCES:
        state.report_anomaly(f"there are too many sequences to add {seq_id}")
        return None
    sequence = SequenceState(seq_id, request.request_id)
    sequence.num_prompt_tokens = request.num_prompt_tokens
    request.seq_ids.append(seq_id)
    state.sequences[seq_id] = sequence
    state.num_by_status[sequence.status] += 1
    return sequence


def clear_output(sequence: SequenceState) -> None:
    """Removes the output of a sequence."""
    sequence.output_token_ids, sequence.output_logprobs = Ints("i"), Floats("f")
    sequence.top_logprobs, sequence.cumulative_logprob = None, 0.0
    sequence.text, sequence.last_delta_length, sequence.text_lengths = "", 0, Ints("b")


def remove_sequence(state: EngineData, sequence: SequenceState) -> None:
    """Removes a sequence from the state and from its request."""
    del state.sequences[sequence.seq_id]
    waits.count_parked(state, sequence, -1)
    state.num_by_status[sequence.status] -= 1
    request = state.requests[sequence.request_id]
    request.seq_ids.remove(sequence.seq_id)
    holdings.update_holders(state, request)


def set_status(state: EngineData, sequence: SequenceState, status: SequenceStatus) -> None:
    """Sets the status of a sequence and updates the counts by status."""
    state.num_by_status[sequence.status] -= 1
    state.num_by_status[status] += 1
    if sequence.engine_status:
        waits.count_parked(state, sequence, -1)
    sequence.status = status
    if sequence.engine_status:
        waits.count_parked(state, sequence, 1)
    if status is SequenceStatus.RUNNING:
        state.holders[sequence.request_id] = True


def close_span(state: EngineData, request: RequestState, time: float) -> None:
    """Ends the last span of a request at `time` (epoch seconds), if it is open, and a wait."""
    last = request.spans[-1]
    if last.end is None:
        last.end = time
        waits.end_wait(state, request, time)
