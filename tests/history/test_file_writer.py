"""Recordings that are being written."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from seqtop.history import FileStore, FileWriter, RecordingError
from seqtop.state import EngineState
from seqtop.wire import codec
from seqtop.wire.messages import Heartbeat
from tests.support.events import arrival
from tests.support.recordings import (
    MAX_FINISHED,
    append,
    assert_same,
    encoded,
    fed,
    final_state,
)

pytestmark = pytest.mark.usefixtures("short_segments")
SCRIPT = encoded(11, 220)


def test_only_the_owner_may_read_a_recording(tmp_path: Path) -> None:
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


def test_flushed_events_can_be_read_while_recording_continues(tmp_path: Path) -> None:
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


def test_state_larger_than_a_message_is_recorded(tmp_path: Path) -> None:
    path, state = tmp_path / "large.seqtop", EngineState()
    for number in range(1, 4):
        state.apply(msgspec.structs.replace(arrival(number), prompt=str(number) * 2**25))
    with FileWriter(path) as writer:
        writer.restore("one", 2, state)
    with FileStore(path) as recording:
        assert recording.damage is None
        assert recording.at(0) == state


def test_numbers_and_times_beyond_the_columns_can_be_read_again(tmp_path: Path) -> None:
    path, state = tmp_path / "run.seqtop", EngineState()
    with FileWriter(path) as writer:
        for number, time in ((2**64 - 1, float("inf")), (2**64, float("nan")), (5, 10.0)):
            event = Heartbeat(time=1.0, step=0)
            state.time, state.step = time, 2**64 - 1
            writer.append(number, codec.encode(event), event, state)
    with FileStore(path) as recording:
        assert recording.damage is None
        assert [recording.index[position].number for position in (1, 2, 3)] == [2**63 - 1] * 3
        assert recording.index[3].step == 2**63 - 1
        assert len(list(recording.events(0, 3))) == 3


def test_full_disk_ends_the_recording_and_leaves_the_rest_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = tmp_path / "run.seqtop", EngineState(max_finished=MAX_FINISHED)
    writer = FileWriter(path)
    append(writer, SCRIPT[:50], state)
    writer.flush()
    real = os.write

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


def test_overwriting_follows_no_link_and_shares_no_file(tmp_path: Path) -> None:
    """Others may have prepared a path in a folder that they can write to."""
    path, target = tmp_path / "run.seqtop", tmp_path / "target"
    target.write_text("years of work")
    path.symlink_to(target)
    with pytest.raises(RecordingError, match="exists already"):
        FileWriter(path)
    with FileWriter(path, overwrite=True) as writer:
        append(writer, SCRIPT[:30], EngineState())
    assert target.read_text() == "years of work"
    assert not path.is_symlink()
    with path.open("rb") as opened_before:
        size = path.stat().st_size
        with FileWriter(path, overwrite=True) as writer:
            append(writer, SCRIPT[:60], EngineState())
        assert os.fstat(opened_before.fileno()).st_size == size
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(RecordingError, match="it is not a file"):
            FileWriter(other, overwrite=True)


@pytest.mark.parametrize("is_moved", [False, True])
def test_file_that_is_removed_is_written_again(tmp_path: Path, is_moved: bool) -> None:
    path, state = tmp_path / "run.seqtop", EngineState(max_finished=MAX_FINISHED)
    with FileWriter(path) as writer:
        append(writer, SCRIPT[:50], state)
        writer.flush()
        if is_moved:
            path.rename(tmp_path / "moved.seqtop")
        else:
            path.unlink()
        writer.flush()
        assert_same(final_state(path), fed(SCRIPT[:50]))
        append(writer, SCRIPT, state, 50)
    assert writer.num_restored == 1
    assert writer.num_bytes == path.stat().st_size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert_same(final_state(path), fed(SCRIPT))


def test_folder_that_is_removed_ends_the_recording(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    writer = FileWriter(folder / "run.seqtop")
    writer.path.unlink()
    folder.rmdir()
    with pytest.raises(RecordingError, match=r"was removed .* written again: No such file"):
        writer.flush()
    with pytest.raises(RecordingError, match="is closed"):
        append(writer, SCRIPT, EngineState())


@pytest.mark.parametrize("is_link", [False, True])
def test_file_that_is_replaced_ends_the_recording_and_stays(tmp_path: Path, is_link: bool) -> None:
    path, other = tmp_path / "run.seqtop", tmp_path / "other"
    first = FileWriter(path)
    append(first, SCRIPT[:50], EngineState(max_finished=MAX_FINISHED))
    if is_link:
        path.rename(other)
        path.symlink_to(other)
        with pytest.raises(RecordingError, match="was replaced by another file"):
            first.flush()
        return
    with FileWriter(path, overwrite=True) as second:
        append(second, SCRIPT[:9], EngineState(max_finished=MAX_FINISHED))
        with pytest.raises(RecordingError, match="was replaced by another file"):
            first.close()
    assert_same(final_state(path), fed(SCRIPT[:9]))
