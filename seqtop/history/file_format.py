"""The layout of a recording, version 2 (`docs/recording.md` is its specification).

A recording is a sequence of zstd frames, so `zstd -dc` reads it. Data is in ordinary frames, each
preceded by a skippable one, its caption, that says what the data is. Everything needed to find
one's way is in the captions; the index at the end repeats them all.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
import zstandard

from seqtop.history.segments import EventBatch
from seqtop.wire import codec
from seqtop.wire.frames import MAX_MESSAGE_BYTES, MAX_SNAPSHOT_BYTES

VERSION: Final = 2
"""Messages are of this version of the protocol; those of version 1 had no `Decodes`."""

OLDEST_VERSION: Final = 1
"""What is still read."""

MAX_FRAME_BYTES: Final = MAX_MESSAGE_BYTES + 2**20
"""No frame holds more, compressed or not: room for a batch that ends in the largest message."""

MAX_KEYFRAME_BYTES: Final = MAX_SNAPSHOT_BYTES
"""But keyframes do: whatever state a viewer can have, it can record."""

SKIPPABLE: Final = struct.Struct("<II")
"""Magic number and size of the content: how every skippable frame begins."""
HEADER_MAGIC: Final = 0x184D2A50
CAPTION_MAGIC: Final = 0x184D2A51
INDEX_MAGIC: Final = 0x184D2A52

SIGNATURE: Final = SKIPPABLE.pack(HEADER_MAGIC, 18) + b"seqtop recording"
HEADER: Final = SIGNATURE + struct.pack("<H", VERSION)
"""The header: a skippable frame whose content is a signature and the version."""
READABLE: Final = tuple(
    SIGNATURE + struct.pack("<H", version) for version in range(OLDEST_VERSION, VERSION + 1)
)
"""The headers of the recordings that can be read."""

TRAILER: Final = struct.Struct("<QI8s")
"""The last bytes: where the index's frame begins, the checksum of its content before them, and
another signature."""
TRAILER_SIGNATURE: Final = b"sqtindex"

_CHECKSUM: Final = struct.Struct("<I")
_COLUMNS: Final = ("sizes", "times", "steps", "kinds")

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
FrameBytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_KEYFRAME_BYTES)]

_Column = TypeVar("_Column", int, float)


class Caption(msgspec.Struct, array_like=True, kw_only=True):
    """What the data frame that follows is."""

    size: FrameBytes
    """Bytes of the data frame."""
    length: FrameBytes
    """Bytes of its content."""


class EventsCaption(Caption, kw_only=True, tag="events"):
    """The content is the payloads of consecutive messages, end to end.

    The columns have a value for each of them, little-endian.
    """

    position: Count
    """Of the first."""
    number: Number
    """Of the first; the others' follow it without a hole."""
    sizes: bytes
    """4-byte unsigned integers: how long each payload is."""
    times: bytes
    """8-byte floats: the engine's clock after each, epoch seconds."""
    steps: bytes
    """8-byte integers: the last step after each."""
    kinds: bytes
    """1-byte sets of `seqtop.history.event_index.Kind`."""


class EndedCaption(Caption, kw_only=True, tag="ended"):
    """The content is an array of finished requests, for keyframes to name by number."""

    first: Count
    """The number of the first."""
    count: Count


class KeyframeCaption(Caption, kw_only=True, tag="keyframe"):
    """The content is a `seqtop.history.keyframe.Keyframe`: the whole state at `position`."""

    position: Count
    number: Number
    time: float
    step: Number
    incarnation: str
    lowest_ended: Count
    """No finished request with a lower number is in it."""
    gap: tuple[bool, Count] | None = None
    """Where the state was taken anew from a snapshot: whether the engine had been restarted, and
    how many messages are missing."""


AnyCaption: TypeAlias = EventsCaption | EndedCaption | KeyframeCaption


def check_size(caption: AnyCaption) -> None:
    """Raise `ValueError` if the frame after a caption is larger than such a frame may be."""
    limit = MAX_KEYFRAME_BYTES if isinstance(caption, KeyframeCaption) else MAX_FRAME_BYTES
    if max(caption.size, caption.length) > limit:
        raise ValueError(f"a frame of {max(caption.size, caption.length):,} bytes is too large")


class Located(NamedTuple):
    """A caption and where in the file its data begins."""

    offset: Count
    caption: AnyCaption


def columns(batch: EventBatch) -> dict[str, bytes]:
    """The columns of a batch as an `EventsCaption` has them."""
    return {name: _little_endian(getattr(batch, name)).tobytes() for name in _COLUMNS}


def batch_of(caption: EventsCaption) -> EventBatch:
    """The batch that a caption describes, without its payloads.

    Raises:
        ValueError: the columns do not fit together, or not the content.
    """
    batch = EventBatch(caption.position, caption.number)
    for name in _COLUMNS:
        column = getattr(batch, name)
        column.frombytes(getattr(caption, name))
        setattr(batch, name, _little_endian(column))
    lengths = {len(getattr(batch, name)) for name in _COLUMNS}
    if len(lengths) != 1 or lengths == {0} or sum(batch.sizes) != caption.length:
        raise ValueError("the columns of a batch do not fit together")
    return batch


def pack_caption(caption: AnyCaption) -> bytes:
    """The skippable frame that says `caption`."""
    content = codec.encode(caption)
    head = SKIPPABLE.pack(CAPTION_MAGIC, _CHECKSUM.size + len(content))
    return head + _CHECKSUM.pack(zlib.crc32(content)) + content


def unpack_caption(content: bytes) -> AnyCaption:
    """The caption in a skippable frame's content.

    Raises:
        ValueError: the content is damaged, or no caption of this version.
    """
    checksum, said = content[: _CHECKSUM.size], content[_CHECKSUM.size :]
    if checksum != _CHECKSUM.pack(zlib.crc32(said)):
        raise ValueError("a caption is damaged")
    return cast(AnyCaption, codec.decode(said, cast(Any, AnyCaption)))


def pack_index(located: list[Located], offset: int) -> bytes:
    """The skippable frame that ends a recording, to be written at `offset`."""
    content = zstandard.ZstdCompressor().compress(codec.encode(located))
    trailer = TRAILER.pack(offset, zlib.crc32(content), TRAILER_SIGNATURE)
    return SKIPPABLE.pack(INDEX_MAGIC, len(content) + len(trailer)) + content + trailer


def unpack_index(content: bytes, checksum: int, *, max_length: int) -> list[Located]:
    """What is in an index of at most `max_length` bytes, from its content without the trailer.

    Raises:
        ValueError: the content is damaged, or no index of this version.
    """
    if zlib.crc32(content) != checksum:
        raise ValueError("the index is damaged")
    return codec.decode(decompress(content, max_length=max_length), list[Located])


def decompress(data: bytes, *, max_length: int) -> bytes:
    """The content of one zstd frame that says how much it holds.

    Raises:
        ValueError: it is damaged, or holds more than `max_length` bytes.
    """
    try:
        # The size is checked first, for that much is allocated before anything is decompressed.
        if not 0 <= zstandard.frame_content_size(data) <= max_length:
            raise ValueError("a frame's size is not what it should be")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a frame is damaged: {error}") from error


def _little_endian(column: array[_Column]) -> array[_Column]:
    """A column in the file's byte order, or back in this machine's."""
    if sys.byteorder == "little":
        return column
    turned = column[:]
    turned.byteswap()
    return turned
