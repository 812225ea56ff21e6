"""Copies of a timeline in memory into a file."""

from pathlib import Path

import pytest

from seqtop.history import FileStore, RecordingError, segments
from seqtop.history.copying import save
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState
from tests.support.recordings import append, assert_same, encoded, fed

SCRIPT = encoded(3, 400)


def recorded(*, max_bytes: int = 2**30) -> tuple[MemoryStore, EngineState]:
    store = MemoryStore(max_bytes=max_bytes)
    return store, append(store, SCRIPT, fed([]))


def test_copy_has_every_state_and_the_same_numbers(tmp_path: Path) -> None:
    store, state = recorded()
    writer = save(store, tmp_path / "copy.seqtop")
    with FileStore(writer.path) as copy:
        assert copy.damage is None
        assert (copy.first, copy.last) == (store.first, store.last)
        assert_same(copy.at(copy.last), state)
        for position in range(0, store.last, 97):
            assert copy.index[position] == store.index[position]
            assert_same(copy.at(position), store.at(position))


def test_copy_of_a_full_store_begins_with_its_second_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)
    store, state = recorded(max_bytes=150_000)
    assert store.first > 0
    begin = store.keyframe_after(store.first)
    assert begin is not None
    writer = save(store, tmp_path / "copy.seqtop")
    with FileStore(writer.path) as copy:
        assert copy.index[0].number == store.index[begin].number
        assert_same(copy.at(0), store.at(begin))
        assert_same(copy.at(copy.last), state)


def test_gap_and_restart_are_copied(tmp_path: Path) -> None:
    store, state = recorded()
    number = len(SCRIPT) - 1
    store.restore("one", number + 7, state)
    other = fed(encoded(4, 10, incarnation="two"))
    store.restore("two", 9, other)
    writer = save(store, tmp_path / "copy.seqtop")
    with FileStore(writer.path) as copy:
        assert copy.gaps == store.gaps
        assert [gap.num_missed for gap in copy.gaps] == [7, 10]
        assert_same(copy.at(copy.last), other)


def test_copy_overwrites_nothing(tmp_path: Path) -> None:
    store, _ = recorded()
    path = tmp_path / "copy.seqtop"
    path.write_text("mine")
    with pytest.raises(RecordingError, match="exists already"):
        save(store, path)
    assert path.read_text() == "mine"
