"""How a message is framed on the PUB socket: topic, sequence number, payload.

The layout is that of vLLM's KV-event stream. The topic is `seqtop/<version>/<incarnation>`, so
that every message says which protocol it speaks and which start of the engine it belongs to,
before anything of its payload is looked at. The sequence number is 8 bytes, big-endian, and
grows by one with each message of an incarnation.
"""

import struct
from typing import NamedTuple

from seqtop.wire.errors import WireError
from seqtop.wire.messages import PROTOCOL_VERSION

MAX_MESSAGE_BYTES = 64 * 2**20
"""Larger messages are refused by the receiving socket (`ZMQ_MAXMSGSIZE`) before any decoding."""

_SEQUENCE_NUMBER = struct.Struct(">Q")
_MAX_TOPIC_BYTES = 256


class ForeignMessageError(WireError):
    """The message is not of this protocol: somebody else is publishing here."""


class ProtocolVersionError(WireError):
    """The message is of a version of the protocol that this seqtop does not speak."""


class Frame(NamedTuple):
    incarnation: str
    sequence_number: int
    payload: bytes


def pack(incarnation: str, sequence_number: int, payload: bytes) -> list[bytes]:
    """The frames of one message, ready for `send_multipart`."""
    topic = f"seqtop/{PROTOCOL_VERSION}/{incarnation}".encode()
    return [topic, _SEQUENCE_NUMBER.pack(sequence_number), payload]


def unpack(frames: list[bytes]) -> Frame:
    """Take one message apart.

    Raises:
        ForeignMessageError: these are not the frames of a seqtop message.
        ProtocolVersionError: they are, but of another version.
    """
    if len(frames) != 3 or len(frames[0]) > _MAX_TOPIC_BYTES:
        raise ForeignMessageError(f"expected topic, number and payload, got {len(frames)} frames")
    topic, number, payload = frames
    name, _, rest = topic.partition(b"/")
    version, _, incarnation = rest.partition(b"/")
    if name != b"seqtop" or not version.isdigit() or not incarnation.isascii():
        raise ForeignMessageError("the topic is not seqtop's")
    if int(version) != PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"the engine speaks version {int(version)} of the seqtop protocol,"
            f" this viewer version {PROTOCOL_VERSION}"
        )
    if len(number) != _SEQUENCE_NUMBER.size:
        raise ForeignMessageError(f"the sequence number has {len(number)} bytes instead of 8")
    return Frame(incarnation.decode("ascii"), _SEQUENCE_NUMBER.unpack(number)[0], payload)
