"""Recordings: written, read, cut anywhere, damaged at will."""

import random
import shutil
import stat
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqtop.history import (
    FileStore,
    FileWriter,
    RecordingError,
    file_store,
    final_state,
    segments,
)
from seqtop.history import file_format as layout
from seqtop.history.event_index import EventKind
from seqtop.history.memory_store import MemoryStore
from seqtop.history.segments import Gap
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import EngineInfo
from tests.support.event_script import EventScript
from tests.support.hand_driven import arrival

MAX_FINISHED = 40
VERSION_1 = Path(__file__).parents[1] / "data" / "golden" / "version-1.seqtop"
SCRIPT = [codec.encode(event) for event in EventScript(11, 220)]
OTHER = [codec.encode(event) for event in EventScript(12, 40, incarnation="two")]


def fed(script: list[bytes]) -> EngineState:
    state = EngineState(max_finished=MAX_FINISHED)
    for payload in script:
        state.apply(parsing.event(payload))
    return state


def append(
    tape_: segments.SegmentBuilder, script: list[bytes], state: EngineState, start: int = 0
) -> None:
    for number, payload in enumerate(script[start:], start):
        event = parsing.event(payload)
        state.apply(event)
        tape_.append(number, payload, event, state)


def assert_same(found: EngineState, wanted: EngineState) -> None:
    for field in msgspec.structs.fields(EngineState):
        assert getattr(found, field.name) == getattr(wanted, field.name), field.name
    assert list(found.requests) == list(wanted.requests)


@pytest.fixture(autouse=True)
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short batches and segments, so that a short script has many."""
    monkeypatch.setattr(segments, "BATCH_BYTES", 4_000)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)


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


def play(tape_: segments.SegmentBuilder) -> None:
    state = EngineState(max_finished=MAX_FINISHED)
    append(tape_, SCRIPT[:150], state)
    state = fed(SCRIPT[:160])
    tape_.restore("one", 159, state)
    append(tape_, SCRIPT, state, 160)
    state = fed(OTHER[:5])
    tape_.restore("two", 4, state)
    append(tape_, OTHER, state, 5)


def wanted_at(position: int) -> EngineState:
    if position <= 150:
        return fed(SCRIPT[:position])
    if position <= 151 + len(SCRIPT) - 160:
        return fed(SCRIPT[: position + 9])
    return fed(OTHER[: position - (152 + len(SCRIPT) - 160) + 5])


def test_every_moment_reads_back_as_it_was(recorded: Path) -> None:
    draw = random.Random(1)
    with FileStore(recorded) as recording:
        assert recording.damage is None
        last = 152 + len(SCRIPT) - 160 + len(OTHER) - 5
        assert (recording.first, recording.last) == (0, last)
        edges = {0, 1, 150, 151, 152, last}
        for position in edges | {draw.randrange(last) for _ in range(60)}:
            assert_same(recording.at(position), wanted_at(position))
    assert_same(final_state(recorded), fed(OTHER))


def test_index_is_the_history_s_own(recorded: Path) -> None:
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
        while (found := recording.index.next(kind, position)) is not None:
            assert history.index.next(kind, position) == found
            position = found
        assert position > 0


def test_payloads_are_the_bytes_that_were_received(recorded: Path) -> None:
    with FileStore(recorded) as recording:
        found = [codec.encode(event) for _, event in recording.events(0, 150)]
    assert found == SCRIPT[:150]


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    with FileWriter(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(RecordingError, match="exists already"):
        FileWriter(path)
    path.chmod(0o644)
    with FileWriter(path, overwrite=True) as writer:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        append(writer, SCRIPT[:30], EngineState(max_finished=MAX_FINISHED))
    assert_same(final_state(path), fed(SCRIPT[:30]))


def test_what_is_flushed_can_be_read_while_recording_goes_on(tmp_path: Path) -> None:
    path, state = tmp_path / "run.seqtop", EngineState(max_finished=MAX_FINISHED)
    with FileWriter(path) as writer:
        append(writer, SCRIPT[:50], state)
        writer.flush()
        with FileStore(path) as recording:
            assert recording.last == 50
            assert recording.num_lost_bytes == 0
            assert "was not closed" in recording.damage
            assert_same(recording.at(50), fed(SCRIPT[:50]))
        append(writer, SCRIPT, state, 50)
    assert_same(final_state(path), fed(SCRIPT))
    assert writer.num_steps == 220
    assert writer.num_bytes == path.stat().st_size


def test_cut_at_any_byte_keeps_what_is_whole_and_says_what_is_lost(
    recorded: Path, tmp_path: Path
) -> None:
    data, draw = recorded.read_bytes(), random.Random(2)
    with FileStore(recorded) as recording:
        ends = [0] + [offset + caption.size for offset, caption in recording._index(len(data))]
    path = tmp_path / "cut.seqtop"
    last = 0
    for size in sorted([0, 1, 25, 26, *(draw.randrange(len(data)) for _ in range(100))]):
        path.write_bytes(data[:size])
        with FileStore(path) as recording:
            assert recording.damage is not None
            whole = max(end for end in ends if end <= size)
            at_index = size >= ends[-1] + 8
            expected = 0 if at_index else size - max(whole, min(size, len(layout.HEADER)))
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


def test_damaged_frame_loses_that_frame_alone(recorded: Path, tmp_path: Path) -> None:
    data = bytearray(recorded.read_bytes())
    with FileStore(recorded) as recording:
        segment = recording._segments[2]
        batch = segment.batches[1]
    data[batch.stored.place[0] + 20] ^= 0x10
    path = tmp_path / "flipped.seqtop"
    path.write_bytes(data)
    with FileStore(path) as recording:
        assert_same(recording.at(batch.position - 1), wanted_at(batch.position - 1))
        with pytest.raises(RecordingError, match="damaged at byte"):
            recording.at(batch.position)
        after = recording.keyframe_after(batch.position)
        assert_same(recording.at(after), wanted_at(after))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_bytes_raise_nothing_but_recording_errors(
    recorded: Path, tmp_path: Path, data: st.DataObject
) -> None:
    spoilt = bytearray(recorded.read_bytes())
    places = st.integers(0, len(spoilt) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        spoilt[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "flipped.seqtop"
    path.write_bytes(spoilt)
    with suppress(RecordingError), FileStore(path) as recording:
        for position in [*range(0, recording.last + 1, 40), recording.last]:
            with suppress(RecordingError):
                state = recording.at(position)
                assert sum(state.num_by_status) == len(state.sequences)
            with suppress(RecordingError):
                list(recording.events(position, position + 5))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_content_that_is_wrong_under_right_checksums_raises_nothing_else(
    recorded: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """As a hostile writer would make it: whole frames of malformed states and events."""
    whole = recorded.read_bytes()
    with FileStore(recorded) as recording:
        located = recording._index(len(whole))
    spoilt = data.draw(st.integers(0, len(located) - 1))
    frames = [layout.HEADER]
    for number, (offset, caption) in enumerate(located):
        content = bytearray(zstandard.decompress(whole[offset : offset + caption.size]))
        if number == spoilt:
            for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=6)):
                content[place] = data.draw(st.integers(0, 255))
        frames.append(frame(caption, zstandard.compress(bytes(content))))
    path = tmp_path / "hostile.seqtop"
    path.write_bytes(b"".join(frames))
    with FileStore(path) as recording:
        assert recording.num_lost_bytes == 0
        for segment in recording._segments:
            with suppress(RecordingError):
                recording.at(segment.position - 1)
        with suppress(RecordingError):
            recording.at(recording.last)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"#!/bin/sh\n", "is not a seqtop recording"),
        (bytes(1000), "is not a seqtop recording"),
        (
            layout.SIGNATURE + b"\x03\x00",
            "is a recording of version 3; this seqtop reads versions 1 to 2",
        ),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=sentence):
        FileStore(path)


def test_a_recording_of_version_1_is_read_to_the_bit() -> None:
    """One that seqtop wrote before its protocol had columns, of the script that is told here."""
    script = EventScript(8, 40, num_blocks=24, columns=False)
    expected = EngineState(max_finished=1_000)
    with FileStore(VERSION_1) as recording:
        for position, event in enumerate(script, 1):
            if isinstance(event, EngineInfo):
                event.protocol_version = 1
            expected.apply(event)
            if position % 10 == 0:
                assert codec.encode(recording.at(position)) == codec.encode(expected)
        assert position == recording.last
        assert recording.at(position) == expected


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        FileStore(tmp_path / "nothing")
    with pytest.raises(RecordingError, match="is not a file"):
        FileStore(tmp_path)
    with pytest.raises(RecordingError, match="cannot be created"):
        FileWriter(tmp_path / "no" / "run.seqtop")
    with pytest.raises(RecordingError, match="cannot be created"):
        FileWriter(tmp_path, overwrite=True)


def frame(caption: layout.AnyCaption, data: bytes) -> bytes:
    caption.size = len(data)
    return layout.pack_caption(caption) + data


def keyframe(data: bytes, length: int) -> bytes:
    caption = layout.KeyframeCaption(
        size=0, length=length, position=0, number=-1, time=0.0, step=-1, incarnation="",
        lowest_ended=0,
    )  # fmt: skip
    return frame(caption, data)


def test_bomb_is_not_expanded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.seqtop"
    bomb = zstandard.ZstdCompressor().compress(bytes(2**30))
    path.write_bytes(layout.HEADER + keyframe(bomb, layout.MAX_FRAME_BYTES))
    with FileStore(path) as recording, pytest.raises(RecordingError, match="size is not what"):
        recording.at(0)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    endless = unsized.compress(bytes(2**28)) + unsized.flush()
    path.write_bytes(layout.HEADER + keyframe(endless, 1_000))
    with FileStore(path) as recording, pytest.raises(RecordingError, match="size is not what"):
        recording.at(0)


def test_captions_that_claim_too_much_end_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "huge.seqtop"
    for length in (layout.MAX_FRAME_BYTES + 1, 2**32 - 1):
        path.write_bytes(layout.HEADER + layout.SKIPPABLE.pack(layout.CAPTION_MAGIC, length))
        with FileStore(path) as recording:
            assert recording.num_lost_bytes == 8
            assert recording.at(0) == EngineState()


def test_state_that_would_be_too_large_is_refused(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileStore(recorded) as recording:
        monkeypatch.setattr(file_store, "MAX_STATE_BYTES", 10_000)
        with pytest.raises(RecordingError, match="too large"):
            recording.at(recording.last)
        assert len(list(recording.events(0, 150))) == 150  # going through it has no such limit


def test_state_that_no_message_could_hold_is_recorded(tmp_path: Path) -> None:
    path, state = tmp_path / "large.seqtop", EngineState()
    for number in range(1, 4):
        state.apply(msgspec.structs.replace(arrival(number), prompt=str(number) * 2**25))
    with FileWriter(path) as writer:
        writer.restore("one", 2, state)
    with FileStore(path) as recording:
        assert recording.damage is None
        assert recording.at(0) == state


@pytest.mark.parametrize(
    ("limit", "caption"),
    [
        ("MAX_FRAME_BYTES", layout.EndedCaption(size=0, length=0, first=0, count=1)),
        (
            "MAX_KEYFRAME_BYTES",
            layout.KeyframeCaption(
                size=0, length=0, position=0, number=-1, time=0.0, step=-1, incarnation="",
                lowest_ended=0,
            ),
        ),
    ],
)  # fmt: skip
def test_frames_have_limits_of_their_own(limit: str, caption: layout.AnyCaption) -> None:
    caption.length = getattr(layout, limit)
    layout.check_size(caption)
    caption.length += 1
    with pytest.raises(ValueError, match="is too large"):
        layout.check_size(caption)


def test_full_disk_ends_the_recording_and_leaves_the_rest_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = tmp_path / "run.seqtop", EngineState(max_finished=MAX_FINISHED)
    writer = FileWriter(path)
    append(writer, SCRIPT[:50], state)
    writer.flush()
    real = file_store.os.write

    def full(file: int, data: bytes) -> int:
        if len(data) <= 10:
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr("seqtop.history.file_writer.os.write", full)
    with pytest.raises(RecordingError, match="No space left"):
        append(writer, SCRIPT, state, 50)
    monkeypatch.undo()
    with pytest.raises(RecordingError, match="is closed"):
        writer.restore("two", 0, state)
    writer.close()
    with FileStore(path) as recording:
        assert recording.last == 50
        assert recording.num_lost_bytes > 0
        assert_same(recording.at(50), fed(SCRIPT[:50]))


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd command is not installed")
def test_zstd_reads_it(recorded: Path) -> None:
    plain = subprocess.run(["zstd", "-dc", recorded], capture_output=True, check=True).stdout
    assert SCRIPT[100] in plain


def test_layout_is_the_documented_one(tmp_path: Path) -> None:
    """By hand, from the description in docs/recording.md, with nothing of the package."""
    path = tmp_path / "run.seqtop"
    with FileWriter(path) as writer:
        append(writer, SCRIPT[:3], EngineState())
    data = path.read_bytes()
    assert data[:26] == bytes.fromhex("502a4d18 12000000") + b"seqtop recording" + b"\x02\x00"
    offset, captions, contents = 26, [], []
    while data[offset : offset + 4] == bytes.fromhex("512a4d18"):
        (length,) = struct.unpack_from("<I", data, offset + 4)
        captions.append(msgspec.msgpack.decode(data[offset + 12 : offset + 8 + length]))
        offset += 8 + length
        size = captions[-1][1]
        contents.append(zstandard.decompress(data[offset : offset + size]))
        offset += size
    assert [caption[0] for caption in captions] == ["keyframe", "events"]
    assert contents[1] == b"".join(SCRIPT[:3])
    _, _, length, position, number, sizes, times, steps, kinds = captions[1]
    assert (length, position, number) == (len(contents[1]), 1, 0)
    assert list(struct.unpack("<3I", sizes)) == [len(payload) for payload in SCRIPT[:3]]
    assert len(times) == len(steps) == 8 * len(kinds) == 24
    index_at, _, signature = struct.unpack("<QI8s", data[-20:])
    assert (index_at, signature) == (offset, b"sqtindex")
    assert data[offset : offset + 4] == bytes.fromhex("522a4d18")


def test_gaps_read_well() -> None:
    assert str(Gap(1, restarted=False, num_missed=1)) == "1 message missing"
    assert str(Gap(1, restarted=False, num_missed=2_000)) == "2,000 messages missing"
    assert str(Gap(1, restarted=True, num_missed=0)) == "the engine was restarted"
