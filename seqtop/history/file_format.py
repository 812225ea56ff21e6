"""The recording format; `docs/recording.md` is its specification.

A recording is a sequence of zstd frames, so `zstd -dc` reads it. A skippable frame before each data
frame has a header that describes the data; the index at the end of the file repeats all headers.
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, cast

import msgspec
import zstandard

from seqtop.history.segments import EventArrays
from seqtop.wire import codec
from seqtop.wire.element_count import MAX_STATE_ELEMENTS, check_elements, count_elements
from seqtop.wire.frames import MAX_MESSAGE_BYTES, MAX_SNAPSHOT_BYTES
from seqtop.wire.messages import PROTOCOL_VERSION

VERSION: Final = PROTOCOL_VERSION
"""A recording has the version of the messages in it, which are stored as they were received."""

MAX_FRAME_BYTES: Final = MAX_MESSAGE_BYTES + 2**20
"""Maximum size of a frame, compressed or not: a batch that ends with the largest message."""

MAX_KEYFRAME_BYTES: Final = MAX_SNAPSHOT_BYTES
"""Maximum size of a keyframe: every state that a viewer can receive can be recorded."""

FREE_BYTES: Final = 2**20
MAX_BYTES_PER_BYTE: Final = 1024
"""A frame of `size` bytes contains at most `FREE_BYTES + MAX_BYTES_PER_BYTE * size` bytes, so that
a small file cannot take much memory. A frame that compresses better is padded."""

FREE_ELEMENTS: Final = 2**20
MAX_ELEMENTS_PER_BYTE: Final = 16
"""The same for MessagePack elements, which take more memory than their bytes."""

SKIPPABLE: Final = struct.Struct("<II")
"""Start of a skippable frame: magic number and size of the content."""
FILE_MAGIC: Final = 0x184D2A50
HEADER_MAGIC: Final = 0x184D2A51
INDEX_MAGIC: Final = 0x184D2A52
PADDING_MAGIC: Final = 0x184D2A53

SIGNATURE: Final = SKIPPABLE.pack(FILE_MAGIC, 18) + b"seqtop recording"
FILE_HEADER: Final = SIGNATURE + struct.pack("<H", VERSION)
"""The first frame: a skippable frame with a signature and the version."""

TRAILER: Final = struct.Struct("<QI8s")
"""The last bytes: offset of the index frame, CRC-32 of its compressed content, and a signature."""
TRAILER_SIGNATURE: Final = b"sqtindex"

_CHECKSUM: Final = struct.Struct("<I")

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
FrameBytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_KEYFRAME_BYTES)]


class FrameHeader(msgspec.Struct, array_like=True, kw_only=True):
    """Describes the data frame that follows."""

    size: FrameBytes
    """Compressed size of the data frame in bytes."""
    length: FrameBytes
    """Size of its content in bytes."""


class EventsHeader(FrameHeader, kw_only=True, tag="events"):
    """Describes a frame that contains the joined payloads of consecutive messages."""

    arrays: EventArrays


class FinishedHeader(FrameHeader, kw_only=True, tag="finished"):
    """Describes a frame that contains an array of `FinishedRequest`."""

    first: Count
    """Number of the first request."""
    count: Count


class KeyframeHeader(FrameHeader, kw_only=True, tag="keyframe"):
    """Describes a frame that contains a `Keyframe`: the state at `position`."""

    position: Count
    number: Number
    """Sequence number of the last message in the state."""
    time: float
    """The engine's clock in epoch seconds."""
    step: Number
    gap: tuple[bool, Count] | None = None
    """Set where a snapshot replaced the state: whether the engine was restarted, and the number of
    missing messages."""


AnyHeader: TypeAlias = EventsHeader | FinishedHeader | KeyframeHeader


class FrameLocation(NamedTuple):
    """The header of a data frame and the offset of the data frame in the file."""

    offset: Count
    header: AnyHeader


def check_size(header: AnyHeader) -> None:
    """Checks the sizes in a header.

    Raises:
        ValueError: The frame is larger than such a frame may be.
    """
    limit = MAX_KEYFRAME_BYTES if isinstance(header, KeyframeHeader) else MAX_FRAME_BYTES
    if max(header.size, header.length) > limit:
        raise ValueError(f"a frame of {max(header.size, header.length):,} bytes is too large")


def check_arrays(header: EventsHeader) -> None:
    """Checks that the arrays of a header fit together and fit the content.

    Raises:
        ValueError: They do not.
    """
    arrays = header.arrays
    lengths = {len(numbers) for numbers in (arrays.sizes, arrays.times, arrays.steps, arrays.kinds)}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError("the arrays of a batch differ in length")
    if not -(2**63) <= arrays.number <= 2**63 - len(arrays.sizes):
        raise ValueError("the numbers of a batch are too large")
    if min(arrays.sizes) < 0 or sum(arrays.sizes) != header.length:
        raise ValueError("the sizes of a batch do not add up to its length")


def pack_header(header: AnyHeader) -> bytes:
    """Returns the skippable frame that contains `header`."""
    content = codec.encode(header)
    start = SKIPPABLE.pack(HEADER_MAGIC, _CHECKSUM.size + len(content))
    return start + _CHECKSUM.pack(zlib.crc32(content)) + content


def unpack_header(content: bytes) -> AnyHeader:
    """Returns the header in the content of a skippable frame.

    Raises:
        ValueError: The content is damaged or is not a header of this version.
    """
    checksum, encoded = content[: _CHECKSUM.size], content[_CHECKSUM.size :]
    if checksum != _CHECKSUM.pack(zlib.crc32(encoded)):
        raise ValueError("a header is damaged")
    return cast(AnyHeader, codec.decode(encoded, cast(Any, AnyHeader)))


def pack_index(frames: list[FrameLocation], offset: int) -> bytes:
    """Returns the index frame, which ends a recording and will be at `offset`."""
    content = compress(codec.encode(frames), zstandard.ZstdCompressor())
    trailer = TRAILER.pack(offset, zlib.crc32(content), TRAILER_SIGNATURE)
    return SKIPPABLE.pack(INDEX_MAGIC, len(content) + len(trailer)) + content + trailer


def unpack_index(content: bytes, checksum: int, *, max_length: int) -> list[FrameLocation]:
    """Returns the data frames of a recording.

    Args:
        content: Content of the index frame, without the trailer.
        checksum: CRC-32 of `content`.
        max_length: Maximum decompressed size in bytes.

    Raises:
        ValueError: The content is damaged or is not an index of this version.
    """
    if zlib.crc32(content) != checksum:
        raise ValueError("the index is damaged")
    return codec.decode(
        decompress(content, max_length=max_length),
        list[FrameLocation],
        max_elements=MAX_STATE_ELEMENTS,
    )


def compress(content: bytes | bytearray, compressor: zstandard.ZstdCompressor) -> bytes:
    """Returns the zstd frame of `content`, padded with a skippable frame if it is very small."""
    data = compressor.compress(content)
    required = -(-(len(content) - FREE_BYTES) // MAX_BYTES_PER_BYTE)
    if len(content) > _max_elements(data):
        num_elements = count_elements(content, len(content))
        required = max(required, -(-(num_elements - FREE_ELEMENTS) // MAX_ELEMENTS_PER_BYTE))
    if required <= len(data):
        return data
    padding = max(0, required - len(data) - SKIPPABLE.size)
    return data + SKIPPABLE.pack(PADDING_MAGIC, padding) + bytes(padding)


def decompress(data: bytes, *, max_length: int) -> bytes:
    """Returns the MessagePack content of a zstd frame that states its content size.

    Args:
        data: One zstd frame, which padding may follow.
        max_length: Maximum content size in bytes.

    Raises:
        ValueError: The frame is damaged, or its content is too large, also in relation to `data`.
    """
    try:
        # The size is checked first, because that much is allocated before decompression.
        length = zstandard.frame_content_size(data)
        if not 0 <= length <= max_length:
            raise ValueError("a frame does not give its size, or is larger than allowed")
        if length > FREE_BYTES + MAX_BYTES_PER_BYTE * len(data):
            raise ValueError(f"a frame of {len(data):,} bytes contains {length:,}")
        content = zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(f"a frame is damaged: {error}") from error
    check_elements(content, _max_elements(data))
    return content


def _max_elements(data: bytes) -> int:
    return FREE_ELEMENTS + MAX_ELEMENTS_PER_BYTE * len(data)
