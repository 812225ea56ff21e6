"""Finished requests: the limits on their number and size, and copying before a late change.

States share the objects of finished requests, because these rarely change and copying thousands of
them for each state would be slow. A stream may still contain an event about one: then the state
gets a copy of its own first.
"""

import copy
import sys

from seqtop.state.model import EngineData, RequestState, SequenceState
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
    return _drop_oldest(
        state, max(len(state.finished) - state.max_finished, state.max_finished // 8)
    )


def _drop_oldest(state: EngineData, num_dropped: int) -> list[int]:
    """Drops the oldest finished requests; returns the ids of their sequences."""
    dropped = state.finished[:num_dropped]
    del state.finished[:num_dropped]
    seq_ids: list[int] = []
    for old in dropped:
        state.holders.pop(old, None)
        for seq_id in state.requests.pop(old).seq_ids:
            sequence = state.sequences.pop(seq_id)
            state.num_by_status[sequence.status] -= 1
            seq_ids.append(seq_id)
    return seq_ids


DEFAULT_MAX_BYTES = 64_000_000
"""Bytes of memory that the finished requests of a viewer take."""


class FinishedMemory:
    """Keeps the memory that a viewer's finished requests take below a limit.

    Their number alone does not limit it: the prompt of one may have a million tokens.

    Args:
        max_bytes: The limit.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        """The bytes at the last `measure`, and of the requests that finished since."""

    def measure(self, state: EngineData) -> list[int]:
        """Measures the finished requests of a state; returns the size of each in bytes."""
        sizes = [_size(state, state.requests[request_id]) for request_id in state.finished]
        self.num_bytes = sum(sizes)
        return sizes

    def limit(self, state: EngineData) -> list[int]:
        """Drops the oldest finished requests of a state, if they take too much.

        An eighth of the limit is then free, so that each finish takes O(1) on average.

        Returns:
            The ids of the sequences dropped.
        """
        sizes, num_dropped = self.measure(state), 0
        while self.num_bytes > self.max_bytes * 7 // 8:
            self.num_bytes -= sizes[num_dropped]
            num_dropped += 1
        return _drop_oldest(state, num_dropped)

    def add(self, state: EngineData, request_id: str) -> list[int]:
        """Counts a request that has just finished; returns the ids of the sequences dropped."""
        request = state.requests.get(request_id)
        if request is None or request.finish_reason is None:
            return []
        self.num_bytes += _size(state, request)
        return self.limit(state) if self.num_bytes > self.max_bytes else []


_REQUEST_BYTES, _SEQUENCE_BYTES, _SPAN_BYTES = 2_500, 1_500, 160
"""The bytes of what has a fixed size, as measured with Python 3.11."""


def _size(state: EngineData, request: RequestState) -> int:
    """Returns the bytes that a request and its sequences take, approximately."""
    prompt_ids = request.prompt_token_ids
    num_bytes = _REQUEST_BYTES + _SPAN_BYTES * len(request.spans)
    num_bytes += sys.getsizeof(request.prompt) + len(prompt_ids) * prompt_ids.itemsize
    return num_bytes + sum(_sequence_size(state.sequences[seq_id]) for seq_id in request.seq_ids)


def _sequence_size(sequence: SequenceState) -> int:
    arrays = sequence.output_token_ids, sequence.output_logprobs, sequence.text_lengths
    num_bytes = _SEQUENCE_BYTES + sum(len(array) * array.itemsize for array in arrays)
    if sequence.top_logprobs is not None:
        num_bytes += sequence.top_logprobs.num_bytes
    return num_bytes + sys.getsizeof(sequence.text)


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
