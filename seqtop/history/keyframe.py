"""Whole states, small enough to keep many: finished requests are stored once and named after.

A keyframe holds what is in flight, in the form a snapshot has, and of the finished requests only
their numbers in an archive. So its size does not grow with what an engine has behind it.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, snapshot
from seqtop.state.model import RequestState, SequenceState
from seqtop.wire import codec
from seqtop.wire.errors import WireError
from seqtop.wire.frames import Buffer

_IN_FLIGHT = -1
_FIVE_ELEMENTS, _LONG_ARRAY = b"\x95", b"\xdd"
"""How MessagePack begins an array of five elements, and one whose length, in four bytes, follows.
"""


class FinishedRequest(msgspec.Struct, array_like=True):
    """A finished request and its sequences: what an archive holds."""

    request: RequestState
    sequences: list[SequenceState]


class Keyframe(msgspec.Struct, array_like=True):
    """A state whose finished requests are numbers of `FinishedRequest` ones."""

    flight: msgspec.Raw
    """An encoded `EngineState` of the unfinished requests, and of finished ones that have no number
    (those that a snapshot brought)."""
    order: bytes
    """Every request in order of arrival, as 4-byte little-endian integers: the number of a
    finished one, or -1 for the next of `flight`."""
    finished: list[tuple[int, int]]
    """The numbered ones in order of their ends, which come after those of `flight`: ranges of
    numbers, the second exclusive."""
    max_finished: int
    parts: list[msgspec.Raw] = []
    """What does not fit into `flight`, where a snapshot had come in parts."""


class EncodedKeyframe(NamedTuple):
    """A keyframe, and the requests that have finished since the one before it."""

    keyframe: list[Buffer]
    """Its bytes, to be put together."""
    ended: list[FinishedRequest]
    first_ended: int
    """Number of the first of `ended`."""
    lowest: int
    """The lowest number that the keyframe names; that of the next to end if it names none."""


class FinishedArchive:
    """Numbers finished requests in the order of their ends, for the keyframes of one record."""

    def __init__(self) -> None:
        self._next = 0
        self._numbers: dict[str, tuple[int, RequestState]] = {}
        """By id the finished requests of the last state seen, and which object each was."""

    def take(self, state: EngineState) -> EncodedKeyframe:
        """Make a keyframe of `state`.

        Raises:
            WireError: something in the state has no encoded form.
        """
        numbers: dict[str, tuple[int, RequestState]] = {}
        ended: list[FinishedRequest] = []
        first = self._next
        for request_id in state.finished:
            request = state.requests[request_id]
            known = self._numbers.get(request_id)
            if known is None or known[1] is not request:
                known = (first + len(ended), request)
                sequences = [state.sequences[seq_id] for seq_id in request.seq_ids]
                ended.append(FinishedRequest(request, sequences))
            numbers[request_id] = known
        in_order = [number for number, _ in numbers.values()]
        order = [
            numbers[request_id][0] if request_id in numbers else _IN_FLIGHT
            for request_id in state.requests
        ]
        keyframe = Keyframe(
            flight=msgspec.Raw(codec.encode(_flight(state, numbers.keys()))),
            order=_to_bytes(order),
            finished=_ranges(in_order),
            max_finished=state.max_finished,
        )
        encoded = codec.encode(keyframe)
        self._numbers, self._next = numbers, first + len(ended)
        return EncodedKeyframe([encoded], ended, first, lowest=min(in_order, default=self._next))

    def adopt(self, state: EngineState, encoded: Sequence[Buffer]) -> EncodedKeyframe:
        """A keyframe of `state`, which has just been decoded from `encoded`, a part after another.

        Nothing is encoded again, and nothing copied.
        """
        keyframe: list[Buffer] = [
            _FIVE_ELEMENTS,
            encoded[0],
            codec.encode(_to_bytes([_IN_FLIGHT] * len(state.requests))),
            codec.encode([]),  # none has a number
            codec.encode(state.max_finished),
            _LONG_ARRAY + (len(encoded) - 1).to_bytes(4, "big"),
            *encoded[1:],
        ]
        self._numbers = {}
        return EncodedKeyframe(keyframe, [], self._next, lowest=self._next)


def restore(data: bytes, ended: Callable[[int], FinishedRequest]) -> EngineState:
    """The state that a keyframe stands for; the finished requests in it are those of `ended`.

    Args:
        data: An encoded `Keyframe`.
        ended: Finds an `FinishedRequest` by its number.

    Raises:
        WireError: the bytes are no keyframe, or one that contradicts itself.
    """
    keyframe = codec.decode(data, Keyframe)
    state = snapshot.load(
        memoryview(keyframe.flight),
        max_finished=keyframe.max_finished,
        parts=map(memoryview, keyframe.parts),
    )
    in_flight = iter(state.requests.values())
    num_sequences = len(state.sequences)
    order = _from_bytes(keyframe.order)
    requests: dict[str, RequestState] = {}
    names: dict[int, str] = {}
    for number in order:
        if number < 0:
            request = next(in_flight, None)
            if request is None:
                raise WireError("keyframe: it counts more requests in flight than it holds")
        else:
            request, sequences = (entry := ended(number)).request, entry.sequences
            names[number] = request.request_id
            num_sequences += len(sequences)
            for sequence in sequences:
                state.sequences[sequence.seq_id] = sequence
                state.num_by_status[sequence.status] += 1
        requests[request.request_id] = request
    if next(in_flight, None) is not None:
        raise WireError("keyframe: it holds more requests in flight than it counts")
    if len(requests) != len(order) or len(state.sequences) != num_sequences:
        raise WireError("keyframe: a request or a sequence is in it twice")
    state.requests = requests
    try:
        state.finished += [
            names.pop(number) for pair in keyframe.finished for number in range(*pair)
        ]
    except KeyError as error:
        raise WireError(f"keyframe: finished request {error} is missing") from error
    if names:
        raise WireError("keyframe: a finished request is not in the list of them")
    return state


def encode_ended(ended: Iterable[FinishedRequest]) -> bytes:
    """Entries of an archive, for `decode_ended`."""
    return codec.encode(list(ended))


def decode_ended(data: bytes) -> list[FinishedRequest]:
    """Entries of an archive, each checked to be one that a state may hold.

    Raises:
        WireError: the bytes are no such entries.
    """
    found = codec.decode(data, list[FinishedRequest])
    for entry in found:
        request, sequences = entry.request, entry.sequences
        ids = [sequence.seq_id for sequence in sequences]
        belong = all(sequence.request_id == request.request_id for sequence in sequences)
        if request.finish_reason is None or not request.spans:
            raise WireError(f"archive: request {request.request_id!r} is malformed")
        if request.seq_ids != ids or len(set(ids)) != len(ids) or not belong:
            raise WireError(f"archive: sequences of {request.request_id!r} are not its own")
    return found


def _flight(state: EngineState, ended: Iterable[str]) -> EngineState:
    """The part of `state` that still changes, as a state of its own."""
    requests = {id_: request for id_, request in state.requests.items() if id_ not in ended}
    sequences = {
        seq_id: state.sequences[seq_id]
        for request in requests.values()
        for seq_id in request.seq_ids
    }
    counts = [0] * len(SequenceStatus)
    for sequence in sequences.values():
        counts[sequence.status] += 1
    return msgspec.structs.replace(
        state, requests=requests, sequences=sequences, finished=[], num_by_status=counts
    )


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers as runs of consecutive ones, their order kept."""
    runs = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    groups = ([number for _, number in run] for _, run in runs)
    return [(group[0], group[-1] + 1) for group in groups]


def _to_bytes(numbers: list[int]) -> bytes:
    packed = array("i", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _from_bytes(data: bytes) -> array[int]:
    packed = array("i")
    if len(data) % packed.itemsize:
        raise WireError(f"keyframe: {len(data)} bytes of order are no whole numbers")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed
