"""How a message is framed on the PUB socket: topic, sequence number, payload, checksum.

The layout is that of vLLM's KV-event stream, with a checksum behind it. The topic is
`seqtop/<version>/<incarnation>`, so that every message says which protocol it speaks and which
start of the engine it belongs to, before anything of its payload is looked at. The sequence number
is 8 bytes, big-endian, and grows by one with each message of an incarnation.

A publisher greets each new subscription with the topic alone (`ZMQ_XPUB_WELCOME_MSG`): what is
published from then on will arrive, so that is the moment to ask for a snapshot.

The checksum is the CRC-32 of all frames before it, 4 bytes, big-endian. A changed bit in a token id
decodes as well as the right one: without it, whatever garbles messages on the way (a relay, a
broken proxy) would make a viewer show what never was. A publisher may leave it out.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from seqtop.wire.errors import WireError
from seqtop.wire.messages import OLDEST_VERSION, PROTOCOL_VERSION

MAX_MESSAGE_BYTES = 64 * 2**20
"""Larger messages are refused by the receiving socket (`ZMQ_MAXMSGSIZE`) before any decoding."""

MAX_SNAPSHOT_BYTES = 512 * 2**20
"""What a snapshot may have, all its parts together."""

_SEQUENCE_NUMBER = struct.Struct(">Q")
_CHECKSUM = struct.Struct(">I")
_MAX_TOPIC_BYTES = 256

Buffer: TypeAlias = bytes | bytearray | memoryview
Bytes = TypeVar("Bytes", bytes, memoryview)


class DamagedMessageError(WireError):
    """The message is not what was sent."""


class ForeignMessageError(WireError):
    """The message is not of this protocol: somebody else is publishing here."""


class ProtocolVersionError(WireError):
    """The message is of a version of the protocol that this seqtop does not speak."""


class Frame(NamedTuple):
    incarnation: str
    sequence_number: int
    payload: bytes
    version: int = PROTOCOL_VERSION
    """Of the protocol that the engine speaks."""


class Greeting(NamedTuple):
    incarnation: str
    version: int = PROTOCOL_VERSION


def topic(incarnation: str) -> bytes:
    """The first frame of every message, and the whole of a greeting."""
    return f"seqtop/{PROTOCOL_VERSION}/{incarnation}".encode()


def pack(incarnation: str, sequence_number: int, payload: bytes) -> list[Buffer]:
    """The frames of one message, ready for `send_multipart`."""
    return seal([topic(incarnation), _SEQUENCE_NUMBER.pack(sequence_number), payload])


def check_size(size: int) -> None:
    """Raise `WireError` if a message of so many bytes is more than viewers take."""
    if size > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {size:,} bytes is more than viewers take")


def unpack(frames: list[bytes]) -> Frame | Greeting:
    """Take one message apart.

    Raises:
        ForeignMessageError: these are not the frames of a seqtop message.
        ProtocolVersionError: they are, but of another version.
        DamagedMessageError: the checksum is of something else.
    """
    if len(frames) not in (1, 3, 4):
        raise ForeignMessageError(f"expected topic, number and payload, got {len(frames)} frames")
    version, incarnation = _speaker(frames[0])
    if len(frames) == 1:
        return Greeting(incarnation, version)
    _, number, payload = unseal(frames, 3)
    if len(number) != _SEQUENCE_NUMBER.size:
        raise ForeignMessageError(f"the sequence number has {len(number)} bytes instead of 8")
    return Frame(incarnation, _SEQUENCE_NUMBER.unpack(number)[0], payload, version)


def seal(frames: Sequence[Buffer]) -> list[Buffer]:
    """`frames` and their checksum."""
    return [*frames, _CHECKSUM.pack(_crc(frames))]


def unseal(frames: Sequence[Bytes], count: int) -> list[Bytes]:
    """The first `count` frames, if what follows is nothing or their checksum.

    Raises:
        DamagedMessageError: it is something else.
    """
    kept, rest = list(frames[:count]), list(frames[count:])
    if rest and rest != [_CHECKSUM.pack(_crc(kept))]:
        raise DamagedMessageError("a message was damaged on the way: its checksum is wrong")
    return kept


def _crc(frames: Iterable[Buffer]) -> int:
    value = 0
    for frame in frames:
        value = zlib.crc32(frame, value)
    return value


def _speaker(topic: bytes) -> tuple[int, str]:
    """Version of the protocol and incarnation of an engine."""
    name, _, rest = topic[:_MAX_TOPIC_BYTES].partition(b"/")
    version, _, incarnation = rest.partition(b"/")
    if name != b"seqtop" or not version.isdigit() or not incarnation.isascii():
        raise ForeignMessageError("the topic is not seqtop's")
    if not OLDEST_VERSION <= int(version) <= PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"the engine speaks version {int(version)} of the seqtop protocol,"
            f" this viewer versions {OLDEST_VERSION} to {PROTOCOL_VERSION}"
        )
    return int(version), incarnation.decode("ascii")
