"""Frames of a message from an engine: topic, sequence number, payload.

The layout is that of vLLM's KV-event stream. The topic is `seqtop/<version>/<incarnation>`: every
message names its protocol version and the incarnation of its engine, so both are checked before the
payload is decoded. Only this module decides about versions. The sequence number has 8 bytes,
big-endian, and grows by one with each message of an incarnation. A reply to a request has the same
frames; its number is that of the next message of the stream.

A publisher sends the topic alone to each new subscription, as the welcome message
(`ZMQ_XPUB_WELCOME_MSG`). Everything published afterwards arrives, so a viewer then requests a
snapshot.
"""

import struct
from typing import NamedTuple, TypeAlias

from seqtop.wire.errors import WireError
from seqtop.wire.messages import PROTOCOL_VERSION

MAX_MESSAGE_BYTES = 64 * 2**20
"""The receiving socket refuses larger messages (`ZMQ_MAXMSGSIZE`) before they are decoded."""

MAX_SNAPSHOT_BYTES = 512 * 2**20
"""The limit on the total size of a snapshot and its parts."""

_SEQUENCE_NUMBER = struct.Struct(">Q")
_MAX_TOPIC_BYTES = 256

Buffer: TypeAlias = bytes | bytearray | memoryview


class ForeignMessageError(WireError):
    """A message of another protocol."""


class ProtocolVersionError(WireError):
    """A message of a protocol version that is not supported."""


class Frame(NamedTuple):
    """A numbered message of the live stream."""

    incarnation: str
    sequence_number: int
    payload: bytes


class ReplyFrame(NamedTuple):
    """A reply, whose payload may be large."""

    incarnation: str
    next_number: int
    """The number of the next message of the stream."""
    payload: memoryview


class Welcome(NamedTuple):
    """The message that a publisher sends to each new subscription."""

    incarnation: str


def topic(incarnation: str) -> bytes:
    """Returns the first frame of every message, which is the only frame of a welcome message."""
    return f"seqtop/{PROTOCOL_VERSION}/{incarnation}".encode()


def pack(incarnation: str, sequence_number: int, payload: Buffer) -> list[Buffer]:
    """Returns the frames of a message, for `send_multipart`."""
    return [topic(incarnation), _SEQUENCE_NUMBER.pack(sequence_number), payload]


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
    """
    if len(frames) not in (1, 3):
        raise ForeignMessageError(f"expected topic, number and payload, got {len(frames)} frames")
    incarnation = _incarnation(frames[0])
    if len(frames) == 1:
        return Welcome(incarnation)
    return Frame(incarnation, _number(frames[1]), frames[2])


def unpack_reply(frames: list[memoryview]) -> ReplyFrame:
    """Parses the frames of a reply to a request.

    Raises:
        ForeignMessageError: The frames are not those of a seqtop message.
        ProtocolVersionError: The message is of another protocol version.
    """
    if len(frames) != 3:
        raise ForeignMessageError(f"expected topic, number and payload, got {len(frames)} frames")
    incarnation = _incarnation(bytes(frames[0][:_MAX_TOPIC_BYTES]))
    return ReplyFrame(incarnation, _number(bytes(frames[1])), frames[2])


def _number(frame: bytes) -> int:
    if len(frame) != _SEQUENCE_NUMBER.size:
        raise ForeignMessageError(f"the sequence number has {len(frame)} bytes instead of 8")
    return int(_SEQUENCE_NUMBER.unpack(frame)[0])


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
