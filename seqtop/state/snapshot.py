"""A whole state as bytes: what a late joiner receives.

The bytes come from the network, and the reducer relies on what `EngineState` promises about
itself (each request's sequences exist, and so on). So those promises are checked here, once.
"""

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import CachedBlock, RequestState, SequenceState
from seqtop.wire import codec
from seqtop.wire.errors import WireError

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


class SnapshotPart(msgspec.Struct):
    """A further part of a state: entries of its dictionaries."""

    requests: dict[str, RequestState] = {}
    sequences: dict[int, SequenceState] = {}
    cached_blocks: dict[int, CachedBlock] = {}


class SnapshotLoader:
    """A state that comes in parts.

    Raises:
        WireError: the first part is no state.
    """

    def __init__(self, first: bytes | memoryview) -> None:
        with _collector_resting():
            self._state = codec.decode(first, EngineState)

    def add(self, data: bytes | memoryview) -> None:
        """Merge a further part into it.

        Raises:
            WireError: the bytes are no part of a state, or repeat what is in it.
        """
        with _collector_resting():
            more = codec.decode(data, SnapshotPart)
        state = self._state
        _merge(state.requests, more.requests, "request")
        _merge(state.sequences, more.sequences, "sequence")
        if state.cached_blocks is not None:
            _merge(state.cached_blocks, more.cached_blocks, "cached block")

    def end(self, *, max_finished: int) -> EngineState:
        """The whole; it will keep at most `max_finished` finished requests.

        Raises:
            WireError: it contradicts itself.
        """
        state = self._state
        _check(state)
        state.max_finished = max_finished
        return state


def load(
    data: bytes | memoryview, *, max_finished: int, parts: Iterable[bytes | memoryview] = ()
) -> EngineState:
    """Decode a state, and further parts of it if there are any.

    Raises:
        WireError: the bytes are no state, or one that contradicts itself.
    """
    loading = SnapshotLoader(data)
    for part in parts:
        loading.add(part)
    return loading.end(max_finished=max_finished)


def _merge(whole: dict[_Key, _Entry], part: dict[_Key, _Entry], what: str) -> None:
    num = len(whole) + len(part)
    whole |= part
    if len(whole) != num:
        raise WireError(f"snapshot: a {what} is in it twice")


def keep_history(new: EngineState, old: EngineState) -> None:
    """Carry finished requests that only `old` still remembers over into `new`.

    Both must be states of the same incarnation of an engine.
    """
    forgotten = [request_id for request_id in old.finished if request_id not in new.requests]
    if not forgotten:
        return
    requests = {request_id: old.requests[request_id] for request_id in forgotten}
    for request in requests.values():
        for seq_id in request.seq_ids:
            sequence = old.sequences[seq_id]
            new.sequences[seq_id] = sequence
            new.num_by_status[sequence.status] += 1
    new.requests = requests | new.requests  # they arrived before what `new` knows
    new.finished = forgotten + new.finished


@contextlib.contextmanager
def _collector_resting() -> Iterator[None]:
    """Keep the garbage collector from looking, again and again, at all that is made meanwhile.

    None of it is garbage, and all of it together takes longer to look at than to make. It is
    counted among what is old at the end, which is looked at seldom.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # all that there is
        gc.unfreeze()  # to the oldest generation
        if was_on:
            gc.enable()


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
    ended = [each.request_id for each in state.requests.values() if each.finish_reason is not None]
    if sorted(ended) != sorted(state.finished):
        raise WireError("snapshot: the list of finished requests does not fit the requests")
    counts = [0] * len(SequenceStatus)
    for sequence in state.sequences.values():
        counts[sequence.status] += 1
    if counts != state.num_by_status:
        raise WireError("snapshot: the counts by status do not add up")
