"""Recordings that are complete, cut at any byte, or damaged."""

import math
import random
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from seqtop.cli.main import main
from seqtop.history import (
    FileStore,
    FileWriter,
    RecordingError,
    file_format,
    file_store,
    segments,
)
from seqtop.history.event_index import EventKind
from seqtop.history.file_format import EventsHeader
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState
from seqtop.wire import codec
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.messages import Heartbeat
from tests.support.recordings import (
    MAX_FINISHED,
    append,
    assert_same,
    encoded,
    fed,
    final_state,
    frames_of,
    record_script,
)

pytestmark = pytest.mark.usefixtures("short_segments")
SCRIPT = encoded(11, 220)
OTHER = encoded(12, 40, incarnation="two")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script, a gap, the rest of it, and another start of the engine."""
    path = tmp_path_factory.mktemp("recorded") / "run.seqtop"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "BATCH_BYTES", 4_000)
        patch.setattr(segments, "SEGMENT_BYTES", 20_000)
        write(path)
    return path


def write(path: Path) -> None:
    with FileWriter(path) as writer:
        play(writer)


def play(store: MemoryStore | FileWriter) -> None:
    state = EngineState(max_finished=MAX_FINISHED)
    append(store, SCRIPT[:150], state)
    state = fed(SCRIPT[:160])
    store.restore("one", 159, state)
    append(store, SCRIPT, state, 160)
    state = fed(OTHER[:5])
    store.restore("two", 4, state)
    append(store, OTHER, state, 5)


def wanted_at(position: int) -> EngineState:
    if position <= 150:
        return fed(SCRIPT[:position])
    if position <= 151 + len(SCRIPT) - 160:
        return fed(SCRIPT[: position + 9])
    return fed(OTHER[: position - (152 + len(SCRIPT) - 160) + 5])


def test_states_are_those_that_were_recorded(recorded: Path) -> None:
    draw = random.Random(1)
    with FileStore(recorded) as recording:
        assert recording.damage is None
        last = 152 + len(SCRIPT) - 160 + len(OTHER) - 5
        assert (recording.first, recording.last) == (0, last)
        edges = {0, 1, 150, 151, 152, last}
        for position in edges | {draw.randrange(last) for _ in range(60)}:
            assert_same(recording.at(position), wanted_at(position))
    assert_same(final_state(recorded), fed(OTHER))


def test_index_is_that_of_a_store_in_memory(recorded: Path) -> None:
    history = MemoryStore()
    play(history)
    with FileStore(recorded) as recording:
        assert recording.gaps == history.gaps
        assert [(gap.position, gap.restarted, gap.num_missed) for gap in recording.gaps] == [
            (151, False, 10),
            (152 + len(SCRIPT) - 160, True, 5),
        ]
        for position in range(recording.last + 1):
            assert recording.index[position] == history.index[position]
        kind, position = EventKind.PREEMPTION, -1
        while (following := recording.index.next(kind, position)) is not None:
            assert history.index.next(kind, position) == following
            position = following
        assert position > 0


def test_payloads_are_the_bytes_that_were_received(recorded: Path) -> None:
    with FileStore(recorded) as recording:
        payloads = [codec.encode(event) for _, event in recording.events(0, 150)]
    assert payloads == SCRIPT[:150]


def test_cut_file_keeps_complete_frames_and_reports_the_rest(
    recorded: Path, tmp_path: Path
) -> None:
    data, draw = recorded.read_bytes(), random.Random(2)
    ends = [0] + [offset + header.size for offset, header in frames_of(recorded)]
    path = tmp_path / "cut.seqtop"
    last = 0
    for size in sorted([0, 1, 25, 26, *(draw.randrange(len(data)) for _ in range(40))]):
        path.write_bytes(data[:size])
        with FileStore(path) as recording:
            assert recording.damage is not None
            whole = max(end for end in ends if end <= size)
            at_index = size >= ends[-1] + 8
            expected = 0 if at_index else size - max(whole, min(size, len(file_format.FILE_HEADER)))
            assert recording.num_lost_bytes == expected
            if expected:
                assert f"last {expected:,} bytes are lost" in recording.damage
            assert recording.last >= last
            last = recording.last
            if size > ends[1]:
                assert_same(recording.at(last), wanted_at(last))
    assert last > 250


def test_damaged_index_is_rebuilt(recorded: Path, tmp_path: Path) -> None:
    data = bytearray(recorded.read_bytes())
    data[-40] ^= 1
    path = tmp_path / "flipped.seqtop"
    path.write_bytes(data)
    with FileStore(path) as recording:
        assert "its index was rebuilt, nothing is lost" in recording.damage
        assert_same(recording.at(recording.last), fed(OTHER))


def test_damaged_frame_affects_only_that_frame(recorded: Path, tmp_path: Path) -> None:
    data = bytearray(recorded.read_bytes())
    batches = [frame for frame in frames_of(recorded) if isinstance(frame.header, EventsHeader)]
    offset, header = batches[6]
    position = header.arrays.position
    data[offset + 20] ^= 0x10
    path = tmp_path / "flipped.seqtop"
    path.write_bytes(data)
    with FileStore(path) as recording:
        assert_same(recording.at(position - 1), wanted_at(position - 1))
        with pytest.raises(RecordingError, match="damaged at byte"):
            recording.at(position)
        after = recording.keyframe_after(position)
        assert_same(recording.at(after), wanted_at(after))
        assert recording.keyframe_after(recording.last) is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"#!/bin/sh\n", "is not a seqtop recording"),
        (bytes(1000), "is not a seqtop recording"),
        (
            file_format.SIGNATURE + b"\x04\x00",
            "is a recording of version 4; this seqtop reads version 3",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=sentence):
        FileStore(path)


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        FileStore(tmp_path / "nothing")
    with pytest.raises(RecordingError, match="is not a file"):
        FileStore(tmp_path)
    with pytest.raises(RecordingError, match="cannot be created"):
        FileWriter(tmp_path / "no" / "run.seqtop")
    with pytest.raises(RecordingError, match="cannot be created: it is not a file"):
        FileWriter(tmp_path, overwrite=True)
    assert tmp_path.is_dir()


def frame(header: file_format.AnyHeader, data: bytes) -> bytes:
    header.size = len(data)
    return file_format.pack_header(header) + data


def keyframe(data: bytes, length: int) -> bytes:
    header = file_format.KeyframeHeader(
        size=0, length=length, position=0, number=-1, time=0.0, step=-1
    )
    return frame(header, data)


@pytest.mark.parametrize(("num_missing", "first"), [(0, 0), (1, 0), (0, 1)])
def test_content_that_is_shorter_than_announced_is_refused(
    num_missing: int, first: int, tmp_path: Path
) -> None:
    path, content = tmp_path / "short.seqtop", b"\x93" + codec.encode(EngineState()) + b"\x90\x00"
    data = zstandard.compress(content)
    finished = file_format.FinishedHeader(size=0, length=len(content), first=first, count=1)
    frames = keyframe(data, len(content) + num_missing), frame(finished, data)
    path.write_bytes(file_format.FILE_HEADER + b"".join(frames))
    with FileStore(path) as recording:
        assert recording.num_lost_bytes == (len(frames[1]) if first else 0)
        if num_missing:
            with pytest.raises(RecordingError, match="a frame is too short"):
                recording.at(0)
        else:
            assert recording.at(0).num_steps_seen == 0


def test_bomb_is_not_expanded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.seqtop"
    bomb = zstandard.ZstdCompressor().compress(bytes(2**30))
    path.write_bytes(file_format.FILE_HEADER + keyframe(bomb, file_format.MAX_FRAME_BYTES))
    with FileStore(path) as recording, pytest.raises(RecordingError, match="not give its size"):
        recording.at(0)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    endless = unsized.compress(bytes(2**28)) + unsized.flush()
    path.write_bytes(file_format.FILE_HEADER + keyframe(endless, 1_000))
    with FileStore(path) as recording, pytest.raises(RecordingError, match="not give its size"):
        recording.at(0)


def keyframe_of(elements: bytes) -> bytes:
    """Returns the content of a keyframe with a list in place of its array of requests."""
    count = len(elements).to_bytes(4, "big")
    return b"\x93" + codec.encode(EngineState()) + b"\xdd" + count + elements + b"\x05"


@pytest.mark.parametrize("element", [b"\xc0", b"\x90", b"\x80"])
@pytest.mark.parametrize(("num", "sentence"), [(2**22, "contains"), (1_100_000, "elements")])
def test_small_file_takes_little_memory(
    tmp_path: Path, element: bytes, num: int, sentence: str
) -> None:
    path = tmp_path / "bomb.seqtop"
    content = keyframe_of(element * num)
    data = zstandard.ZstdCompressor(level=19).compress(content)
    if sentence == "elements":  # large enough for its content, but not for so many elements
        data += bytes(100)
    path.write_bytes(file_format.FILE_HEADER + keyframe(data, len(content)))
    assert path.stat().st_size < 1_000
    del content
    tracemalloc.start()
    try:
        with FileStore(path) as recording:
            with pytest.raises(RecordingError, match=sentence):
                recording.at(0)
            assert sentence in next(recording.unreadable())
        assert tracemalloc.get_traced_memory()[1] < 2 * num + 2**20
    finally:
        tracemalloc.stop()


def test_content_that_compresses_unusually_well_can_be_recorded(tmp_path: Path) -> None:
    """Thousands of requests with one prompt, and with the blocks of a shared prefix."""
    compressor = zstandard.ZstdCompressor()
    for content in (codec.encode("x" * 2**23), codec.encode([[0] * 1_000] * 3_000)):
        data = file_format.compress(content, compressor)
        assert len(data) < len(content) / 20
        assert file_format.decompress(data, max_length=len(content)) == content
        assert zstandard.ZstdDecompressor().decompress(data) == content
        with pytest.raises(ValueError, match=r"contains|elements"):
            file_format.decompress(compressor.compress(content), max_length=len(content))


FIRST, LAST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("number", "step", "missed"),
    [(LAST, FIRST, LAST), (FIRST, LAST, 0), (0, LAST, LAST), (0, FIRST, 0)],
)
@pytest.mark.parametrize("clock", [1e308, -1e308, math.inf, math.nan, 1e12])
def test_extreme_numbers_are_read_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
    number: int, step: int, clock: float, missed: int,
) -> None:  # fmt: skip
    path, content = tmp_path / "extreme.seqtop", b"\x93\x80" + codec.encode([Ints("i"), 5])[1:]
    frames = [file_format.FILE_HEADER]
    for position, gap in ((0, None), (2, (True, missed)), (4, (False, missed))):
        header = file_format.KeyframeHeader(
            size=0, length=len(content), position=position, number=number,
            time=clock, step=step, gap=gap,
        )  # fmt: skip
        frames.append(frame(header, zstandard.compress(content)))
        event = codec.encode(Heartbeat(time=clock, step=step))
        arrays = segments.EventArrays(
            position + 1, number, Ints("i", [len(event)]), Floats("d", [clock]), Ints("q", [step]),
            Ints("b", [7]),
        )  # fmt: skip
        events = EventsHeader(size=0, length=len(event), arrays=arrays)
        frames.append(frame(events, zstandard.compress(event)))
    path.write_bytes(b"".join(frames))
    with FileStore(path) as recording:
        assert recording.num_lost_bytes == 0
        assert recording.last == 5
        assert len(list(recording.events(0, 5))) == 5
        for kind in EventKind:
            recording.index.next(kind, 0)
        for of in (number, step):
            recording.index.at_step(of)
        recording.index.at_time(clock)
        recording.index.next_step(0)
        recording.at(5)
    for command in (["show"], ["show", "--json"], ["check"], ["check", "--json"]):
        main([*command, str(path)])
    forms = ["--csv", "--csv --steps", "--perfetto", "--mooncake", "--vcr", "--otlp"]
    for form in map(str.split, forms):
        main(["export", str(path), *form, "--force", "-o", str(tmp_path / "out")])
    assert "Traceback" not in capsys.readouterr().err


def test_headers_that_claim_too_much_end_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "huge.seqtop"
    for length in (file_format.MAX_FRAME_BYTES + 1, 2**32 - 1):
        start = file_format.SKIPPABLE.pack(file_format.HEADER_MAGIC, length)
        path.write_bytes(file_format.FILE_HEADER + start)
        with FileStore(path) as recording:
            assert recording.num_lost_bytes == 8
            assert recording.at(0) == EngineState()


def test_state_that_would_be_too_large_is_refused(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileStore(recorded) as recording:
        monkeypatch.setattr(file_store, "MAX_STATE_BYTES", 10_000)
        with pytest.raises(RecordingError, match="too large"):
            recording.at(recording.last)
        assert len(list(recording.events(0, 150))) == 150  # going through it has no such limit
    state = EngineState(last_anomaly="x" * 9_000)  # a hundred bytes when compressed
    with FileWriter(tmp_path / "large.seqtop") as writer:
        writer.restore("one", 0, state)
    ((_, header),) = frames_of(tmp_path / "large.seqtop")
    with FileStore(tmp_path / "large.seqtop") as recording:
        monkeypatch.setattr(file_store, "MAX_STATE_BYTES", header.length)
        assert recording.at(0).last_anomaly == state.last_anomaly
        monkeypatch.setattr(file_store, "MAX_STATE_BYTES", header.length - 1)
        with pytest.raises(RecordingError, match="too large"):
            recording.at(0)


def test_only_the_finished_requests_of_one_state_stay_decoded(recorded: Path) -> None:
    with FileStore(recorded) as recording:
        for position in range(0, recording.last, 7):
            state = recording.at(position)
            assert len(recording._decoded) <= len(state.finished)
        assert recording._decoded


def test_a_recording_that_was_closed_at_once_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    FileWriter(path).close()
    with FileStore(path) as recording:
        assert recording.is_empty
        assert recording.damage == (
            f"{path} has nothing in it: it was closed before anything was recorded"
        )


def test_an_index_of_frames_beyond_the_file_is_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    record_script(path)
    data, frames, wanted = path.read_bytes(), frames_of(path), final_state(path)
    offset = int.from_bytes(data[-20:-12], "little")
    frames[-1].header.size += 1_000_000
    path.write_bytes(data[:offset] + file_format.pack_index(frames, offset))
    with FileStore(path) as recording:
        assert recording.damage is not None
        assert recording.num_lost_bytes == 0
    assert_same(final_state(path), wanted)
