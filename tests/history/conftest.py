"""Timelines of short segments, and a long one."""

import pytest

from seqtop.history import segments
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState
from tests.support.recordings import MAX_FINISHED, append, encoded


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short batches and segments, so that a short script has many."""
    monkeypatch.setattr(segments, "BATCH_BYTES", 4_000)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)


@pytest.fixture(scope="package")
def long_script() -> list[bytes]:
    return encoded(1, 2_000)


@pytest.fixture(scope="package")
def long(long_script: list[bytes]) -> MemoryStore:
    """`long_script` in a store whose segments have their usual length."""
    store = MemoryStore()
    append(store, long_script, EngineState(max_finished=MAX_FINISHED))
    return store
