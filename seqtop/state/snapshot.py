"""Loading of a whole state from bytes, as a late joiner receives it.

The bytes come from the network, and the reducer relies on the invariants of `EngineState` (each
request's sequences exist, and so on). So the invariants are checked here, once.
"""

from typing import TypeVar

import msgspec

from seqtop.process import garbage_collection
from seqtop.sequence import SequenceStatus
from seqtop.sequence.names import Name
from seqtop.state import EngineState
from seqtop.state.model import CachedBlock, RequestState, SequenceState
from seqtop.wire import codec
from seqtop.wire.element_count import MAX_STATE_ELEMENTS, count_elements
from seqtop.wire.errors import WireError

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


class StatePart(msgspec.Struct):
    """A further part of a state: more entries of its dictionaries."""

    requests: dict[Name, RequestState] = {}
    sequences: dict[int, SequenceState] = {}
    cached_blocks: dict[int, CachedBlock] = {}


class SnapshotLoader:
    """Assembles a state that arrives in parts.

    Args:
        first: The encoded state, without the entries in later parts.

    Raises:
        WireError: The first part is not a state.
    """

    def __init__(self, first: bytes | memoryview) -> None:
        self._num_bytes = self._num_elements = 0
        self._check_size(first)
        with garbage_collection.paused():
            self._state = codec.decode(first, EngineState, max_elements=MAX_STATE_ELEMENTS)

    def add(self, data: bytes | memoryview) -> None:
        """Merges a further part into the state.

        Raises:
            WireError: The bytes are not a part of a state, repeat one of its entries, or make the
                state too large.
        """
        self._check_size(data)
        with garbage_collection.paused():
            more = codec.decode(data, StatePart, max_elements=MAX_STATE_ELEMENTS)
        state = self._state
        _merge(state.requests, more.requests, "request")
        _merge(state.sequences, more.sequences, "sequence")
        if state.cached_blocks is not None:
            _merge(state.cached_blocks, more.cached_blocks, "cached block")

    def end(self, *, max_finished: int) -> EngineState:
        """Checks and returns the whole state.

        Args:
            max_finished: The largest number of finished requests after later events.

        Raises:
            WireError: The state contradicts itself.
        """
        state = self._state
        _check(state)
        state.max_finished = max_finished
        return state

    def _check_size(self, data: bytes | memoryview) -> None:
        """Limits the elements of all parts together, from the size on at which it can matter."""
        self._num_bytes += len(data)
        if self._num_bytes > MAX_STATE_ELEMENTS:
            limit = MAX_STATE_ELEMENTS - self._num_elements
            self._num_elements += count_elements(data, limit)


def load(data: bytes | memoryview, *, max_finished: int) -> EngineState:
    """Decodes and checks a state that arrived in one part.

    Raises:
        WireError: The bytes are not a state, or a state that contradicts itself.
    """
    return SnapshotLoader(data).end(max_finished=max_finished)


def _merge(whole: dict[_Key, _Entry], part: dict[_Key, _Entry], noun: str) -> None:
    num = len(whole) + len(part)
    whole |= part
    if len(whole) != num:
        raise WireError(f"snapshot: a {noun} is in it twice")


def share_finished(new: EngineState, old: EngineState) -> None:
    """Replaces each finished request of `new` that equals one of `old` by the object of `old`."""
    for request_id in old.finished:
        request = old.requests[request_id]
        if new.requests.get(request_id) != request:
            continue
        sequences = {seq_id: old.sequences[seq_id] for seq_id in request.seq_ids}
        if all(new.sequences[seq_id] == sequence for seq_id, sequence in sequences.items()):
            new.requests[request_id] = request
            new.sequences.update(sequences)


def carry_finished(new: EngineState, old: EngineState) -> None:
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


def _check(state: EngineState) -> None:
    owners: dict[int, str] = {}
    for request_id, request in state.requests.items():
        repeats = len(set(request.seq_ids)) != len(request.seq_ids)
        if request.request_id != request_id or not request.spans or repeats:
            raise WireError(f"snapshot: request {request_id!r} is malformed")
        for seq_id in request.seq_ids:
            if owners.setdefault(seq_id, request_id) != request_id:
                raise WireError(f"snapshot: sequence {seq_id} belongs to two requests")
    for seq_id, sequence in state.sequences.items():
        if sequence.seq_id != seq_id or owners.pop(seq_id, None) != sequence.request_id:
            raise WireError(f"snapshot: sequence {seq_id} is not one of its request's")
    if owners:
        raise WireError(f"snapshot: sequence {next(iter(owners))} is missing")
    finished = [
        each.request_id for each in state.requests.values() if each.finish_reason is not None
    ]
    if sorted(finished) != sorted(state.finished):
        raise WireError("snapshot: the list of finished requests does not fit the requests")
    counts = [0] * len(SequenceStatus)
    for sequence in state.sequences.values():
        counts[sequence.status] += 1
    if counts != state.num_by_status:
        raise WireError("snapshot: the counts by status do not add up")
