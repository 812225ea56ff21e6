"""Frames of a message on the PUB socket: topic, sequence number, payload, checksum.

The layout is that of vLLM's KV-event stream with an additional checksum. The topic is
`seqtop/<version>/<incarnation>`: every message names its protocol version and the incarnation of
its engine, so both are checked before the payload is decoded. The sequence number has 8 bytes,
big-endian, and grows by one with each message of an incarnation.

A publisher sends the topic alone to each new subscription, as the welcome message
(`ZMQ_XPUB_WELCOME_MSG`). Everything published afterwards arrives, so a viewer then requests a
snapshot.

The checksum is the CRC-32 of all preceding frames, 4 bytes, big-endian. A changed bit in a token id
decodes without an error: without a checksum, a relay or proxy that damages messages would make a
viewer show a wrong state. A publisher may omit the checksum.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from seqtop.wire.errors import WireError
from seqtop.wire.messages import PROTOCOL_VERSION

MAX_MESSAGE_BYTES = 64 * 2**20
"""The receiving socket refuses larger messages (`ZMQ_MAXMSGSIZE`) before they are decoded."""

MAX_SNAPSHOT_BYTES = 512 * 2**20
"""The limit on the total size of a snapshot and its parts."""

_SEQUENCE_NUMBER = struct.Struct(">Q")
_CHECKSUM = struct.Struct(">I")
_MAX_TOPIC_BYTES = 256

Buffer: TypeAlias = bytes | bytearray | memoryview
Bytes = TypeVar("Bytes", bytes, memoryview)


class DamagedMessageError(WireError):
    """The checksum of a message is wrong."""


class ForeignMessageError(WireError):
    """A message of another protocol."""


class ProtocolVersionError(WireError):
    """A message of a protocol version that is not supported."""


class Frame(NamedTuple):
    """A numbered message of the live stream."""

    incarnation: str
    sequence_number: int
    payload: bytes


class Welcome(NamedTuple):
    """The message that a publisher sends to each new subscription."""

    incarnation: str


def topic(incarnation: str) -> bytes:
    """Returns the first frame of every message, which is the only frame of a welcome message."""
    return f"seqtop/{PROTOCOL_VERSION}/{incarnation}".encode()


def pack(incarnation: str, sequence_number: int, payload: bytes) -> list[Buffer]:
    """Returns the frames of a message, for `send_multipart`."""
    return seal([topic(incarnation), _SEQUENCE_NUMBER.pack(sequence_number), payload])


def check_size(size: int) -> None:
    """Checks the size of a payload.

    Raises:
        WireError: The payload has more than `MAX_MESSAGE_BYTES` bytes.
    """
    if size > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {size:,} bytes is larger than viewers accept")


def unpack(frames: list[bytes]) -> Frame | Welcome:
    """Parses the frames of a message.

    Raises:
        ForeignMessageError: The frames are not those of a seqtop message.
        ProtocolVersionError: The message is of another protocol version.
        DamagedMessageError: The checksum is wrong.
    """
    if len(frames) not in (1, 3, 4):
        raise ForeignMessageError(f"expected topic, number and payload, got {len(frames)} frames")
    incarnation = _incarnation(frames[0])
    if len(frames) == 1:
        return Welcome(incarnation)
    _, number, payload = unseal(frames, 3)
    if len(number) != _SEQUENCE_NUMBER.size:
        raise ForeignMessageError(f"the sequence number has {len(number)} bytes instead of 8")
    return Frame(incarnation, _SEQUENCE_NUMBER.unpack(number)[0], payload)


def seal(frames: Sequence[Buffer]) -> list[Buffer]:
    """Returns the frames followed by their checksum."""
    return [*frames, _CHECKSUM.pack(_crc(frames))]


def unseal(frames: Sequence[Bytes], count: int) -> list[Bytes]:
    """Returns the first `count` frames, after which only their checksum may follow.

    Raises:
        DamagedMessageError: Something other than their checksum follows.
    """
    sealed, rest = list(frames[:count]), list(frames[count:])
    if rest and rest != [_CHECKSUM.pack(_crc(sealed))]:
        raise DamagedMessageError("a message was damaged on the way: its checksum is wrong")
    return sealed


def _crc(frames: Iterable[Buffer]) -> int:
    value = 0
    for frame in frames:
        value = zlib.crc32(frame, value)
    return value


def _incarnation(topic: bytes) -> str:
    name, _, rest = topic[:_MAX_TOPIC_BYTES].partition(b"/")
    version, _, incarnation = rest.partition(b"/")
    if name != b"seqtop" or not version.isdigit() or not incarnation.isascii():
        raise ForeignMessageError("the topic is not seqtop's")
    if int(version) != PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"the engine uses version {int(version)} of the seqtop protocol,"
            f" this viewer version {PROTOCOL_VERSION}"
        )
    return incarnation.decode("ascii")
