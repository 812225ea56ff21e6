"""Why a sequence is where it is, in one sentence."""

from seqtop.sequence import SequenceStage, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.columns import stage
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.view import SequenceView
from seqtop.wire.messages import WaitReason


def why(state: EngineState, view: SequenceView, sequence: SequenceState) -> str:
    """What `sequence` is doing, what it waits for or how it ended; `view` knows the queue."""
    request = state.requests[sequence.request_id]
    if SequenceStatus.is_finished(sequence.status):
        redacted = state.info is not None and state.info.redacted
        return _ended(request, sequence, redacted=redacted)
    if sequence.status == SequenceStatus.RUNNING:
        return _running(request, sequence)
    return " ".join(filter(None, (_preempted(request), _waiting(state, view, request, sequence))))


def _running(request: RequestState, sequence: SequenceState) -> str:
    if stage(sequence) == SequenceStage.PREFILL:
        done, total = sequence.num_computed_tokens, sequence.num_tokens
        again = " again, as it was preempted" if sequence.output_token_ids else ""
        return f"Computing its {_tokens(total)}{again}: {done:,} are in the cache."
    count = len(sequence.output_token_ids)
    params = request.sampling_params
    drafts = ""
    if drafted := sequence.num_draft_tokens:
        drafts = (
            f" Of {_tokens(drafted, 'draft')} {sequence.num_accepted_tokens or 0:,} were right."
        )
    if params and params.max_tokens:
        return f"Decoding: {count:,} of at most {_tokens(params.max_tokens)} so far.{drafts}"
    return f"Decoding: {_tokens(count)} so far.{drafts}"


def _preempted(request: RequestState) -> str:
    if not request.num_preemptions or not request.preemption_steps:
        return ""
    step = request.preemption_steps[-1]
    who = f" to make room for {request.preempted_for}" if request.preempted_for else ""
    if request.last_preemption_mode == "swap":
        return f"Swapped out at step {step:,}{who}; nothing is lost."
    lost = request.num_lost_tokens
    if request.num_preemptions == 1:
        then = f"{_tokens(lost, 'computed token')} will be recomputed"
    else:
        then = f"{request.num_preemptions} preemptions have cost it {_tokens(lost)}"
    return f"Preempted at step {step:,}{who}; {then}."


def _waiting(
    state: EngineState, view: SequenceView, request: RequestState, sequence: SequenceState
) -> str:
    if sequence.engine_status not in ("", "PREEMPTED"):
        return f"It waits for something other than its turn: {sequence.engine_status}."
    if request.wait_reason is not None:
        return _reason(state, request.wait_reason)
    if sequence.status == SequenceStatus.SWAPPED:
        return "It waits for blocks to come back to."
    place = view.queue_place(sequence.seq_id)
    if place is None or place[0] == 0:
        return "Next in the queue; the scheduler has not come to it yet."
    ahead, next_id = place
    before = state.sequences.get(next_id)
    behind = f"Behind {before.request_id}" if before else "In the queue"
    return f"{behind}, {_tokens(ahead, 'sequence')} ahead of it in the queue."


def _reason(state: EngineState, reason: WaitReason) -> str:
    missing, info = reason.num_missing, state.info
    match reason.cause:
        case "no_blocks":
            if missing <= 0:
                return "Waiting for free blocks."
            return f"Waiting for {missing:,} more free {'block' if missing == 1 else 'blocks'}."
        case "token_budget":
            budget = f" of {info.max_num_batched_tokens:,}" if info else ""
            more = f"; {_tokens(missing)} more would do" if missing > 0 else ""
            return f"Waiting: the step's token budget{budget} is spent{more}."
        case "seq_limit":
            limit = f" all {info.max_num_seqs:,}" if info else " all"
            return f"Waiting for a place:{limit} sequences that may run at once do."


def _ended(request: RequestState, sequence: SequenceState, *, redacted: bool) -> str:
    count = len(sequence.output_token_ids)
    match sequence.status:
        case SequenceStatus.FINISHED_STOPPED:
            stop = sequence.stop_reason
            if stop is None and redacted:
                return f"Finished by itself after {_tokens(count)}."
            at = "at the end-of-text token" if stop is None else f"at {_stop(stop)}"
            return f"Finished {at} after {_tokens(count)}."
        case SequenceStatus.FINISHED_LENGTH_CAPPED:
            params = request.sampling_params
            limit = f" ({params.max_tokens:,})" if params and params.max_tokens else ""
            return f"Finished: it reached its limit of tokens{limit}."
        case SequenceStatus.FINISHED_ABORTED:
            return f"Aborted after {_tokens(count)}."
        case _:
            return "Ignored: its prompt is longer than the engine takes."


def _stop(reason: int | str) -> str:
    return f"stop token {reason}" if isinstance(reason, int) else f"the stop string {reason!r}"


def _tokens(number: int, noun: str = "token") -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
