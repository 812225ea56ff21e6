"""Finished requests: the cap on their number, and copying before a late change.

States share the objects of finished requests, because these rarely change and copying thousands of
them for each state would be slow. A stream may still contain an event about one: then the state
gets a copy of its own first.
"""

import copy

from seqtop.state.model import EngineData
from seqtop.wire.batch import scheduled_requests
from seqtop.wire.messages import Step


def evict_finished(state: EngineData, request_id: str) -> list[int]:
    """Counts a request as finished and drops the oldest finished requests beyond the cap.

    Drops an eighth of the cap at once, so that each finish costs O(1) on average.

    Returns:
        The ids of the sequences dropped.
    """
    state.finished.append(request_id)
    state.num_finished += 1
    if len(state.finished) <= state.max_finished:
        return []
    num_dropped = max(len(state.finished) - state.max_finished, state.max_finished // 8)
    dropped = state.finished[:num_dropped]
    del state.finished[:num_dropped]
    seq_ids: list[int] = []
    for old in dropped:
        for seq_id in state.requests.pop(old).seq_ids:
            sequence = state.sequences.pop(seq_id)
            state.num_by_status[sequence.status] -= 1
            seq_ids.append(seq_id)
    return seq_ids


def copy_finished(state: EngineData, step: Step) -> None:
    """Gives `state` copies of the finished requests that `step` would change."""
    for request_id in _named_requests(state, step):
        request = state.requests.get(request_id)
        if request is None or request.finish_reason is None:
            continue
        state.requests[request_id] = copy.deepcopy(request)
        for seq_id in request.seq_ids:
            state.sequences[seq_id] = copy.deepcopy(state.sequences[seq_id])


def _named_requests(state: EngineData, step: Step) -> set[str]:
    """Returns the ids of the requests that `step` may change."""
    named = set(scheduled_requests(step))
    named.update(preemption.request_id for preemption in step.preemptions)
    named.update(reason.request_id for reason in step.wait_reasons)
    named.update(step.metrics)
    for update in step.sequences:
        if sequence := state.sequences.get(update.seq_id):
            named.add(sequence.request_id)
        elif update.request_id is not None:
            named.add(update.request_id)
    return named
