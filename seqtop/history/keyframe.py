"""Keyframes: encoded states from which playing continues.

A keyframe is a snapshot of the unfinished requests, and a number for each finished one. A store has
each finished request once, even if many keyframes name it. With whole snapshots instead, seeking to
a state of 10,000 finished requests takes 3 to 6 times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState
from seqtop.wire import codec
from seqtop.wire.arrays import Ints
from seqtop.wire.element_count import MAX_STATE_ELEMENTS
from seqtop.wire.errors import WireError

_UNFINISHED = -1
_AT_ONCE = 100
"""The requests or sequences that are encoded while other threads wait: less than a millisecond."""


class FinishedRequest(msgspec.Struct, array_like=True):
    """A finished request and its sequences."""

    request: RequestState
    sequences: list[SequenceState]


class Keyframe(msgspec.Struct, array_like=True):
    """A state in which numbers stand for the finished requests."""

    unfinished: msgspec.Raw
    """The encoded `EngineState`, without its finished requests."""
    requests: Ints
    """One element for each request, in order of arrival: the number of a finished one, or -1 for
    the next of `unfinished`. Requests that finished later have higher numbers."""
    max_finished: int


class EncodedKeyframe(NamedTuple):
    """An encoded keyframe and the finished requests that must be stored with it."""

    data: bytes
    """The `Keyframe`, encoded and compressed."""
    length: int
    """The bytes of the `Keyframe` before it was compressed."""
    finished: list[FinishedRequest]
    """The finished requests that no earlier keyframe names."""
    first_finished: int
    """Number of the first element of `finished`."""
    lowest_finished: int
    """The lowest number in the keyframe; the next free number if it names none."""


class KeyframeEncoder:
    """Encodes the keyframes of one timeline and numbers its finished requests.

    Args:
        compress: Compresses an encoded keyframe for the store of the timeline.
    """

    def __init__(self, compress: Callable[[bytes], bytes]) -> None:
        self._compress = compress
        self._next = 0
        self._numbers: dict[str, tuple[int, RequestState]] = {}
        """Number and object of each finished request of the last state, by request id."""

    def encode(self, state: EngineState) -> EncodedKeyframe:
        """Encodes a keyframe of `state`.

        Raises:
            WireError: Something in the state has no encoded form.
        """
        numbers: dict[str, tuple[int, RequestState]] = {}
        new: list[FinishedRequest] = []
        last = -1
        for request_id in state.finished:
            request = state.requests[request_id]
            numbered = self._numbers.get(request_id)
            # Numbers follow the order of `state.finished`, so a request out of order is stored
            # again, as is one that was changed after its end.
            if numbered is None or numbered[1] is not request or numbered[0] <= last:
                numbered = self._next + len(new), request
                sequences = [state.sequences[seq_id] for seq_id in request.seq_ids]
                new.append(FinishedRequest(request, sequences))
            numbers[request_id] = numbered
            last = numbered[0]
        requests = [
            numbers[request_id][0] if request_id in numbers else _UNFINISHED
            for request_id in state.requests
        ]
        # A tuple has the same encoding as a `Keyframe`, without a copy of the encoded state.
        data = codec.encode(
            (_without_finished(state, numbers), Ints.of(requests), state.max_finished)
        )
        first, self._next = self._next, self._next + len(new)
        self._numbers = numbers
        lowest = min((number for number, _ in numbers.values()), default=self._next)
        return EncodedKeyframe(self._compress(data), len(data), new, first, lowest)


def restore(data: bytes, finished: Callable[[int], FinishedRequest]) -> EngineState:
    """Returns the state of a keyframe.

    Args:
        data: An encoded `Keyframe`.
        finished: Returns the finished request of a number. The state shares its objects.

    Raises:
        WireError: The bytes are not a keyframe, or the keyframe contradicts itself.
    """
    keyframe = codec.decode(data, Keyframe, max_elements=MAX_STATE_ELEMENTS)
    state = codec.decode(
        memoryview(keyframe.unfinished), EngineState, max_elements=MAX_STATE_ELEMENTS
    )
    _check(state)
    state.max_finished = keyframe.max_finished
    if state.finished:
        raise WireError("keyframe: a finished request has no number")
    unfinished = iter(state.requests.values())
    num_sequences = len(state.sequences)
    requests: dict[str, RequestState] = {}
    names: dict[int, str] = {}
    for number in keyframe.requests:
        if number < 0:
            request = next(unfinished, None)
            if request is None:
                raise WireError("keyframe: it has fewer unfinished requests than it lists")
        else:
            request, sequences = (entry := finished(number)).request, entry.sequences
            names[number] = request.request_id
            num_sequences += len(sequences)
            for sequence in sequences:
                state.sequences[sequence.seq_id] = sequence
                state.num_by_status[sequence.status] += 1
        requests[request.request_id] = request
    if next(unfinished, None) is not None:
        raise WireError("keyframe: it has more unfinished requests than it lists")
    if len(requests) != len(keyframe.requests) or len(state.sequences) != num_sequences:
        raise WireError("keyframe: a request or a sequence is in it twice")
    state.requests = requests
    state.finished = [names[number] for number in sorted(names)]
    return state


def encode_finished(requests: Iterable[FinishedRequest]) -> bytes:
    """Encodes finished requests for `decode_finished`."""
    return codec.encode(list(requests))


def decode_finished(data: bytes) -> list[FinishedRequest]:
    """Decodes finished requests and checks that each is one.

    Raises:
        WireError: The bytes are something else.
    """
    requests = codec.decode(data, list[FinishedRequest], max_elements=MAX_STATE_ELEMENTS)
    for entry in requests:
        request, sequences = entry.request, entry.sequences
        ids = [sequence.seq_id for sequence in sequences]
        belong = all(sequence.request_id == request.request_id for sequence in sequences)
        if request.finish_reason is None or not request.spans:
            raise WireError(f"finished request {request.request_id!r} is malformed")
        if request.seq_ids != ids or len(set(ids)) != len(ids) or not belong:
            raise WireError(f"the sequences of finished request {request.request_id!r} differ")
    return requests


def _without_finished(state: EngineState, finished: Container[str]) -> EngineState:
    requests = {id_: request for id_, request in state.requests.items() if id_ not in finished}
    sequences = {
        seq_id: state.sequences[seq_id]
        for request in requests.values()
        for seq_id in request.seq_ids
    }
    counts = [0] * len(SequenceStatus)
    for sequence in sequences.values():
        counts[sequence.status] += 1
    return msgspec.structs.replace(
        state,
        requests=_encoded(requests),
        sequences=_encoded(sequences),
        finished=[],
        num_by_status=counts,
    )


def _encoded(values: dict[Any, Any]) -> Any:
    """Returns an encoded dictionary, which `codec.encode` then copies; a small one as it is.

    10,000 sequences take 70 ms. They are encoded in parts, so that other threads, such as the
    app's, can go in between.
    """
    if len(values) <= _AT_ONCE:
        return values  # without a copy: a few requests may be large
    encoded = bytearray(b"\xdf" + len(values).to_bytes(4, "big"))  # a map of MessagePack
    items = iter(values.items())
    while part := dict(islice(items, _AT_ONCE)):
        time.sleep(0)  # gives the interpreter's lock to whoever waits for it
        start = len(encoded)
        codec.encode_into(part, encoded)
        del encoded[start : start + (1 if len(part) < 16 else 3)]  # the head of the part's own map
    return msgspec.Raw(encoded)


def _check(state: EngineState) -> None:
    owners: dict[int, str] = {}
    for request_id, request in state.requests.items():
        repeats = len(set(request.seq_ids)) != len(request.seq_ids)
        if request.request_id != request_id or not request.spans or repeats:
            raise WireError(f"keyframe: request {request_id!r} is malformed")
        for seq_id in request.seq_ids:
            if owners.setdefault(seq_id, request_id) != request_id:
                raise WireError(f"keyframe: sequence {seq_id} belongs to two requests")
    for seq_id, sequence in state.sequences.items():
        if sequence.seq_id != seq_id or owners.pop(seq_id, None) != sequence.request_id:
            raise WireError(f"keyframe: sequence {seq_id} is not one of its request's")
    if owners:
        raise WireError(f"keyframe: sequence {next(iter(owners))} is missing")
    finished = [
        request.request_id
        for request in state.requests.values()
        if request.finish_reason is not None
    ]
    if sorted(finished) != sorted(state.finished):
        raise WireError("keyframe: the list of finished requests does not fit the requests")
    counts = [0] * len(SequenceStatus)
    for sequence in state.sequences.values():
        counts[sequence.status] += 1
    if counts != state.num_by_status:
        raise WireError("keyframe: the counts by status do not add up")
