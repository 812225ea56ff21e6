"""The format of recordings: its specification, its limits."""

import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import msgspec
import pytest
import zstandard

from seqtop.history import FileWriter, file_format
from seqtop.history.segments import EventArrays
from seqtop.state import EngineState
from seqtop.wire.arrays import Floats, Ints
from tests.support.recordings import append, encoded

SCRIPT = encoded(11, 220)


@pytest.mark.parametrize(
    ("limit", "header"),
    [
        ("MAX_FRAME_BYTES", file_format.FinishedHeader(size=0, length=0, first=0, count=1)),
        (
            "MAX_KEYFRAME_BYTES",
            file_format.KeyframeHeader(
                size=0, length=0, position=0, number=-1, time=0.0, step=-1,
            ),
        ),
    ],
)  # fmt: skip
def test_frames_have_limits_of_their_own(limit: str, header: file_format.AnyHeader) -> None:
    header.length = getattr(file_format, limit)
    file_format.check_size(header)
    header.length += 1
    with pytest.raises(ValueError, match="is too large"):
        file_format.check_size(header)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd command is not installed")
def test_zstd_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    with FileWriter(path) as writer:
        append(writer, SCRIPT, EngineState())
    plain = subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout
    assert SCRIPT[100] in plain


def test_layout_is_the_documented_one(tmp_path: Path) -> None:
    """Read by hand, from docs/recording.md, with nothing of the package."""
    path, script = tmp_path / "run.seqtop", SCRIPT[:110]
    with FileWriter(path) as writer:
        state = append(writer, script, EngineState())
        writer.restore("one", len(script) + 1, state)
    data = path.read_bytes()
    assert data[:26] == bytes.fromhex("502a4d18 12000000") + b"seqtop recording" + b"\x03\x00"
    offset, frames = 26, []
    while data[offset : offset + 4] == bytes.fromhex("512a4d18"):
        length, checksum = struct.unpack_from("<II", data, offset + 4)
        header = data[offset + 12 : offset + 8 + length]
        assert zlib.crc32(header) == checksum
        name, size, content_length, *fields = msgspec.msgpack.decode(header)
        offset += 8 + length
        content = zstandard.decompress(data[offset : offset + size])
        assert len(content) == content_length
        frames.append((offset, name, fields, content))
        offset += size
    assert [name for _, name, _, _ in frames] == ["keyframe", "events", "finished", "keyframe"]

    _, _, (position, number, time, step, gap), content = frames[0]
    assert (position, number, time, step, gap) == (0, -1, 0.0, -1, None)
    _, requests, max_finished = msgspec.msgpack.decode(content)
    assert (requests.code, requests.data, max_finished) == (ord("i"), b"", 1_000)

    _, _, [arrays], content = frames[1]
    position, number, sizes, times, steps, kinds = arrays
    assert (position, number, content) == (1, 0, b"".join(script))
    count = len(script)
    assert [chr(numbers.code) for numbers in (sizes, times, steps, kinds)] == ["i", "d", "q", "b"]
    assert list(struct.unpack(f"<{count}i", sizes.data)) == [len(payload) for payload in script]
    assert struct.unpack(f"<{count}d", times.data)[-1] == state.time
    assert struct.unpack(f"<{count}q", steps.data)[-1] == state.step
    assert kinds.data.count(1) == len(state.finished) > 0

    _, _, (first, num_finished), content = frames[2]
    assert (first, num_finished) == (0, len(state.finished))
    finished = [request["request_id"] for request, _ in msgspec.msgpack.decode(content)]
    assert finished == state.finished

    _, _, (position, number, time, step, gap), content = frames[3]
    assert (position, number) == (count + 1, count + 1)
    assert (time, step, gap) == (state.time, state.step, [False, 2])
    unfinished, requests, _ = msgspec.msgpack.decode(content)
    numbers = iter(struct.unpack(f"<{len(state.requests)}i", requests.data))
    names = iter(unfinished["requests"])
    restored = [finished[n] if n >= 0 else next(names) for n in numbers]
    assert restored == list(state.requests)

    index_offset, checksum, signature = struct.unpack("<QI8s", data[-20:])
    assert (index_offset, signature) == (offset, b"sqtindex")
    assert data[offset : offset + 4] == bytes.fromhex("522a4d18")
    index = data[offset + 8 : -20]
    assert zlib.crc32(index) == checksum
    repeated = msgspec.msgpack.decode(zstandard.decompress(index))
    assert [(offset, header[0]) for offset, header in repeated] == [
        (offset, name) for offset, name, _, _ in frames
    ]


def events_header(
    *, position: int = 1, number: int = 0, sizes: list[int], length: int = 2, kind: int = 0
) -> file_format.EventsHeader:
    kinds = Ints.of([kind] * length)
    times, steps = Floats("d", [1.0] * length), Ints.of([0] * length)
    arrays = EventArrays(position, number, Ints.of(sizes), times, steps, kinds)
    return file_format.EventsHeader(size=9, length=7, arrays=arrays)


def test_arrays_must_fit_together() -> None:
    file_format.check_arrays(events_header(sizes=[3, 4]))
    file_format.check_arrays(events_header(sizes=[3, 4], number=2**63 - 2))
    for wrong in (
        events_header(sizes=[], length=0),
        events_header(sizes=[7]),
        events_header(sizes=[3, 5]),
        events_header(sizes=[-1, 8]),
        events_header(sizes=[3, 4], number=2**63 - 1),
        events_header(sizes=[3, 4], number=-(2**63) - 1),
    ):
        with pytest.raises(ValueError, match="of a batch"):
            file_format.check_arrays(wrong)


def test_damaged_headers_are_refused() -> None:
    packed = file_format.pack_header(events_header(sizes=[3, 4]))[file_format.SKIPPABLE.size :]
    assert file_format.unpack_header(packed) == events_header(sizes=[3, 4])
    for index in range(len(packed)):
        damaged = packed[:index] + bytes([packed[index] ^ 1]) + packed[index + 1 :]
        with pytest.raises(ValueError, match="a header is damaged"):
            file_format.unpack_header(damaged)


def test_a_frame_is_padded_to_the_size_that_its_content_needs() -> None:
    """It may have 1 MiB, and 1,024 bytes more for each of its own."""
    size = file_format.FREE_BYTES + 1_024 * 5_000
    content = b"\xc6" + (size - 5).to_bytes(4) + bytes(size - 5)  # one array of bytes
    frame = file_format.compress(content, zstandard.ZstdCompressor())
    assert len(frame) == 5_000
    assert file_format.decompress(frame, max_length=size) == content
