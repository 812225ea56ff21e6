"""The status of a sequence in one or two sentences: its progress, the reason to wait, its end."""

import itertools

from seqtop.sequence import SequenceStage, SequenceStatus
from seqtop.state.fields import is_prompt_unknown, stage
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.ordering import SequenceView
from seqtop.state.sort_key import has_priorities
from seqtop.state.step_summary import preemption_cause
from seqtop.state.wait_causes import CAUSES, OWN_TURN, cause_in_words, describe_reason
from seqtop.state.wait_graph import queue_head
from seqtop.state.waits import wait_until
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.wire.messages import PrefixMiss

_SHORTEST_WAIT = 0.05
"""Seconds below which a wait is not worth a sentence."""
_MAX_NAMED = 4
"""The largest number of writers of blocks, and of ranges of blocks, in a sentence."""


def status_sentence(state: EngineData, view: SequenceView, sequence: SequenceState) -> str:
    """Returns one or two sentences on a sequence: its progress, the reason to wait, or its end.

    Args:
        state: The state of the engine.
        view: A view of `state`, for the position in the queue.
        sequence: A sequence of `state`.
    """
    request = state.requests[sequence.request_id]
    if SequenceStatus.is_finished(sequence.status):
        redacted = state.info is not None and state.info.redacted
        parts = [
            _finished(request, sequence, redacted=redacted),
            _was_preempted(request),
            describe_waits(state, request),
            describe_misses(sequence),
        ]
        return " ".join(filter(None, parts))
    waits = describe_waits(state, request)
    if sequence.status == SequenceStatus.RUNNING:
        parts = [
            _running(request, sequence),
            _was_preempted(request),
            waits,  # a pane of few lines cuts what comes last
            _prefix_hits(state, request, sequence),
            _external_hits(sequence),
            describe_misses(sequence),
        ]
    else:
        parts = [_preempted(request, sequence), _waiting(state, view, request, sequence), waits]
    parts += [_fork(state, sequence), _lora(request)]
    return " ".join(filter(None, parts))


def describe_waits(state: EngineData, request: RequestState) -> str:
    """Describes how long a request has waited in the queue, and for what; empty if hardly."""
    wait = wait_until(state, request, state.time)
    if not wait.total >= _SHORTEST_WAIT:
        return ""
    if not wait.by_cause:
        return f"Waited {fmt.seconds(wait.total)} ({CAUSES['unknown'].label})."
    longest = sorted(wait.by_cause.items(), key=lambda item: -item[1])
    parts = [
        f"{cause_in_words(cause).label} {fmt.seconds(seconds)}"
        for cause, seconds in longest[:_MAX_NAMED]
        if seconds >= wait.total / 1000
    ]
    known = sum(wait.by_cause.values())
    if wait.total - known >= wait.total / 100:
        parts.append(f"{CAUSES['unknown'].label} {fmt.seconds(wait.total - known)}")
    sentence = f"Waited {fmt.seconds(wait.total)} ({', '.join(parts)})"
    for_turn = sum(seconds for cause, seconds in wait.by_cause.items() if cause in CAUSES)
    behind = for_turn - wait.named
    if behind >= wait.total / 100:
        sentence += f", {fmt.seconds(behind)} of it behind others"
    return f"{sentence}."


def describe_misses(sequence: SequenceState) -> str:
    """Describes which tokens the prefix cache did not have at the last admission, and why.

    Returns:
        A sentence; empty if nothing is known.
    """
    misses = sequence.prefix_misses
    if not misses:
        return ""
    if misses[0].cause == "not_cacheable":
        return "All its tokens have to be computed, so it does not use the prefix cache."
    parts = [_miss(miss, f"{miss.num_tokens:,}") for miss in misses[1:_MAX_NAMED]]
    parts.insert(0, _miss(misses[0], _plural(misses[0].num_tokens)))
    if others := sum(miss.num_tokens for miss in misses[_MAX_NAMED:]):
        parts.append(f"{others:,} more")
    num_found = sequence.num_cached_tokens - sequence.num_external_tokens
    where = (
        f"Not in the prefix cache from token {num_found:,} on"
        if num_found > 0
        else "Nothing found in the prefix cache"
    )
    return f"{where}: {', '.join(parts)}."


def _miss(miss: PrefixMiss, number: str) -> str:
    """Describes consecutive tokens that were not found, `number` of them."""
    by, at = miss.request_id, "" if miss.step is None else f" at step {miss.step:,}"
    match miss.cause:
        case "new_tokens":
            why = "not seen before"
        case "evicted":
            why = f"evicted{at}" + (f" for {by}" if by else "")
        case "not_stored":
            why = f"not stored by {by}, which was admitted{at}" if by else "not stored so far"
        case "extra_keys":
            why = f"of {by or 'others'} with another adapter or salt"
        case "broken_prefix":
            why = "cached behind missing ones"
        case "partial_block":
            why = "at the prompt's end, which is always computed"
        case "not_cacheable":
            why = "that have to be computed"
        case "unknown":
            since = "" if miss.step is None else f"; no request had them since step {miss.step:,}"
            why = f"for an unknown reason{since}"
    return f"{number} {why}"


def _running(request: RequestState, sequence: SequenceState) -> str:
    if is_prompt_unknown(request, sequence):
        known = _plural(sequence.num_computed_tokens)
        return f"Computing its prompt, whose length is not known: {known} so far."
    if stage(sequence) == SequenceStage.PREFILL:
        done, total = sequence.num_computed_tokens, sequence.num_tokens
        again = " again, as it was preempted" if sequence.output_token_ids else ""
        return f"Computing its {_plural(total)}{again}: {done:,} are in the cache."
    count = len(sequence.output_token_ids)
    params = request.sampling_params
    drafts = ""
    if drafted := sequence.num_draft_tokens:
        drafts = (
            f" {sequence.num_accepted_tokens or 0:,} of {_plural(drafted, 'draft token')} accepted."
        )
    if params and params.max_tokens:
        return f"Decoding: {count:,} of at most {_plural(params.max_tokens)} so far.{drafts}"
    return f"Decoding: {_plural(count)} so far.{drafts}"


def _prefix_hits(state: EngineData, request: RequestState, sequence: SequenceState) -> str:
    """Names the blocks found in the prefix cache, and the requests that wrote them."""
    num_hits = sequence.num_cached_tokens - sequence.num_external_tokens
    block_size = state.info.block_size if state.info else 0
    if num_hits <= 0:
        return ""
    total = f"{_plural(num_hits)} found in the prefix cache"
    if request.num_preemptions:
        total += f" when it was recomputed ({sequence.num_prompt_hits:,} before that)"
    # Blocks swapped out come back as other blocks.
    if block_size <= 0 or request.last_preemption_mode == "swap":
        return f"{total}."
    by_writer: dict[str, list[int]] = {}
    for block in sequence.block_table[: num_hits // block_size]:
        cached = (state.cached_blocks or {}).get(block)
        by_writer.setdefault(cached.request_id if cached else "", []).append(block)
    parts: list[str] = []
    for writer, blocks in itertools.islice(by_writer.items(), _MAX_NAMED):
        by = "that it wrote itself" if writer == request.request_id else f"written by {writer}"
        written_by = f" {by}" if writer else ""
        parts.append(f"{_plural(len(blocks), 'block')}{written_by} ({_numbers(blocks)})")
    if len(by_writer) > _MAX_NAMED:
        num_others = len(by_writer) - _MAX_NAMED
        parts.append(f"and blocks of {_plural(num_others, 'other request')}")
    return f"{total}: {'; '.join(parts)}." if parts else f"{total}."


def _external_hits(sequence: SequenceState) -> str:
    if sequence.num_external_tokens <= 0:
        return ""
    return f"{_plural(sequence.num_external_tokens)} loaded by the KV connector."


def _lora(request: RequestState) -> str:
    return f"LoRA adapter: {request.lora}." if request.lora else ""


def _numbers(blocks: list[int]) -> str:
    """Formats block numbers, consecutive ones as a range: `4-6, 9`."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][-1] + 1:
            runs[-1][1:] = [block]
        else:
            runs.append([block])
    more = " and more" if len(runs) > _MAX_NAMED else ""
    return ", ".join("-".join(map(str, run)) for run in runs[:_MAX_NAMED]) + more


def _fork(state: EngineData, sequence: SequenceState) -> str:
    if sequence.fork_length is None:
        return ""
    parent = state.sequences.get(-1 if sequence.parent_seq_id is None else sequence.parent_seq_id)
    shared = len({*parent.block_table}.intersection(sequence.block_table)) if parent else 0
    sharing = f", sharing {_plural(shared, 'block')} with it" if shared else ""
    return (
        f"A fork of sequence {sequence.parent_seq_id} at token {sequence.fork_length:,}{sharing}."
    )


def _preempted(request: RequestState, sequence: SequenceState) -> str:
    if not request.num_preemptions or not request.preemption_steps:
        return ""
    step = request.preemption_steps[-1]
    cause = preemption_cause(request.request_id, request.preempted_for)
    if request.last_preemption_mode == "swap":
        blocks = len(sequence.host_table)
        where = f", {_plural(blocks, 'block')} to host memory" if blocks else ""
        return f"Swapped out at step {step:,}{cause}{where}; nothing is lost."
    lost = request.num_lost_tokens
    if request.num_preemptions == 1:
        then = f"{_plural(lost, 'computed token')} will be recomputed"
    else:
        then = f"{request.num_preemptions} preemptions have cost it {_plural(lost)}"
    return f"Preempted at step {step:,}{cause}; {then}."


def _was_preempted(request: RequestState) -> str:
    """Describes the preemptions of a request that does not wait after one any more."""
    number = request.num_preemptions
    if not number or not request.preemption_steps:
        return ""
    lost = f"{_plural(request.num_lost_tokens, 'computed token')} lost"
    if not request.num_lost_tokens:
        lost = "nothing was lost"
    cause = preemption_cause(request.request_id, request.preempted_for)
    when = f"at step {request.preemption_steps[-1]:,}{cause}"
    if number == 1:
        did = "Swapped out" if request.last_preemption_mode == "swap" else "Preempted"
        return f"{did} {when}; {lost}."
    return f"Preempted {number:,} times, {lost}, the last time {when}."


def _waiting(
    state: EngineData, view: SequenceView, request: RequestState, sequence: SequenceState
) -> str:
    if (status := sequence.engine_status) not in OWN_TURN:
        return f"Waiting: {cause_in_words(status).sentence} ({status})."
    if request.wait_reason is not None:
        return f"Waiting: {describe_reason(request.wait_reason, state.info)}."
    if sequence.status == SequenceStatus.SWAPPED:
        return "Waiting for free blocks on the device."
    position = view.queue.position(sequence.seq_id)
    if state.info is not None and state.info.queue_order == "unknown":
        return "In the queue, whose order the engine does not give."
    if position is None or position[0] == 0:
        return "Next in the queue."
    ahead, next_id = position
    before = state.sequences.get(next_id)
    behind = f"Behind {before.request_id}" if before else "In the queue"
    if before and _is_more_urgent(state, state.requests[before.request_id], request):
        urgency = state.requests[before.request_id].priority
        behind += f", which is more urgent (priority {urgency:,} before {request.priority:,})"
    return f"{behind}, {_plural(ahead, 'sequence')} ahead of it in the queue{_head(state)}."


def _head(state: EngineData) -> str:
    """Names the head of the queue and its reason, for which all behind it wait, if it is known."""
    head = queue_head(state)
    if head is None:
        return ""
    if head.request is None:
        return f", whose head {head.request_id} has ended"
    reason = head.request.wait_reason
    return f"; {head.request_id} waits: {describe_reason(reason, state.info)}" if reason else ""


def _is_more_urgent(state: EngineData, one: RequestState, other: RequestState) -> bool:
    by_arrival = state.info is not None and not has_priorities(state.info)
    return one.priority < other.priority and not by_arrival


def _finished(request: RequestState, sequence: SequenceState, *, redacted: bool) -> str:
    count = len(sequence.output_token_ids)
    match sequence.status:
        case SequenceStatus.FINISHED_STOPPED:
            stop = sequence.stop_reason
            if stop is None and redacted:
                return f"Finished by itself after {_plural(count)}."
            at = "at the end-of-text token" if stop is None else f"at {_stop(stop)}"
            return f"Finished {at} after {_plural(count)}."
        case SequenceStatus.FINISHED_LENGTH_CAPPED:
            params = request.sampling_params
            limit = f" ({params.max_tokens:,})" if params and params.max_tokens else ""
            return f"Finished: it reached its limit of tokens{limit}."
        case SequenceStatus.FINISHED_ABORTED:
            reason = sequence.stop_reason  # of engines that give one
            why = f": {safe_line(reason)}" if isinstance(reason, str) else ""
            return f"Aborted after {_plural(count)}{why.rstrip('.')}."
        case _:
            return "Ignored: the prompt exceeds the engine's maximum length."


def _stop(reason: int | str) -> str:
    return f"stop token {reason}" if isinstance(reason, int) else f"the stop string {reason!r}"


def _plural(number: int, noun: str = "token") -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
