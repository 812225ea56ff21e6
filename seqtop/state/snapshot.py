"""A whole state as bytes: what a late joiner receives.

The bytes come from the network, and the reducer relies on what `EngineState` promises about
itself (each request's sequences exist, and so on). So those promises are checked here, once.
"""

import contextlib
import gc
from collections.abc import Iterator

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire import codec
from seqtop.wire.errors import WireError


def load(data: bytes | memoryview, *, max_finished: int) -> EngineState:
    """Decode a state that will keep at most `max_finished` finished requests.

    Raises:
        WireError: the bytes are no state, or one that contradicts itself.
    """
    with _collector_resting():
        state = codec.decode(data, EngineState)
    _check(state)
    state.max_finished = max_finished
    return state


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
