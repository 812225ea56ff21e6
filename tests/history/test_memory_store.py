"""The store in memory: its limits, and the objects that states share."""

import tracemalloc

import msgspec
import pytest

from seqtop.history.event_index import EventKind
from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import RecordingError
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.errors import WireError
from tests.support import events
from tests.support.events import arrival, update
from tests.support.recordings import MAX_FINISHED, append, assert_same, encoded, fed

SHORT = encoded(2, 120)


def recorded(script: list[bytes], store: MemoryStore) -> MemoryStore:
    append(store, script, EngineState(max_finished=MAX_FINISHED))
    return store


@pytest.mark.usefixtures("short_segments")
def test_ring_drops_the_oldest_segments_and_stays_exact() -> None:
    script = encoded(6, 400)
    whole = recorded(script, MemoryStore())
    history = recorded(script, MemoryStore(max_bytes=whole.num_bytes // 4))
    assert history.num_bytes < whole.num_bytes // 4 + 100_000
    assert 0 < history.first < history.last == len(script)
    assert history.first == history.keyframe_before(history.first)
    assert len(history.index) == history.last - history.first + 1
    for position in (history.first, history.first + 1, history.last - 30, history.last):
        assert_same(history.at(position), fed(script[:position]))
        assert history.index[position] == whole.index[position]
    assert_same(history.at(0), fed(script[: history.first]))  # the nearest there is
    for position in (history.first, history.first + 5, history.last):
        before = whole.index.previous(EventKind.FINISH, position)
        expected = before if before > history.first else None
        assert history.index.previous(EventKind.FINISH, position) == expected
    with pytest.raises(IndexError):
        history.index[history.first - 1]
    few = recorded(script, MemoryStore(max_events=50))
    assert len(few.index) < 120
    assert_same(few.at(few.last), fed(script))


@pytest.mark.usefixtures("short_segments")
def test_events_that_are_dropped_while_they_are_read_are_an_error() -> None:
    history, state = MemoryStore(max_bytes=0), EngineState(max_finished=MAX_FINISHED)
    append(history, SHORT[:10], state)
    events = history.events(0, len(SHORT))
    assert next(events)[0] == 1
    append(history, SHORT, state, 10)
    assert history.first > 11
    with pytest.raises(RecordingError, match=r"event \d+ is no longer recorded"):
        list(events)


@pytest.mark.usefixtures("short_segments")
def test_finished_requests_are_shared_and_never_changed_for_others() -> None:
    state, history = EngineState(), MemoryStore()
    append(history, SHORT, state)
    end = history.last
    name = state.finished[0]
    seq_id = state.requests[name].seq_ids[0]
    assert history.at(end).requests[name] is history.at(end - 1).requests[name]
    wanted = codec.encode(state.sequences[seq_id])
    late = events.step(
        10_000,
        start_time=1.0,
        time=2.0,
        execute=parsing.event(next(p for p in SHORT if b"Step" in p[:8])).execute,
        sequences=[update(seq_id, SequenceStatus.RUNNING, 1, text="a ghost")],
        stats=state.stats,
    )
    payload = codec.encode(late)
    event = parsing.event(payload)
    state.apply(event)
    history.append(len(SHORT), payload, event, state)
    assert state.sequences[seq_id].text.endswith("a ghost")
    assert_same(history.at(end + 1), state)
    assert codec.encode(history.at(end).sequences[seq_id]) == wanted


@pytest.mark.usefixtures("short_segments")
def test_states_share_the_finished_requests_of_the_session() -> None:
    history, state = MemoryStore(), EngineState(max_finished=MAX_FINISHED)
    append(history, SHORT, state)
    finished = history.at(history.keyframe_before(history.last)).finished
    shared = [name for name in finished if name in state.requests]
    assert shared
    read = history.at(history.last)
    assert all(read.requests[name] is state.requests[name] for name in shared)


def test_compressed_data_takes_no_more_memory_than_is_counted() -> None:
    history, state, size = MemoryStore(), EngineState(), 2**20
    state.apply(msgspec.structs.replace(arrival(1), prompt="x" * size))
    tracemalloc.start()
    try:
        for number in range(10):
            history.restore(f"{number}", 0, state)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert history.num_bytes < size // 20
    assert held < size // 2


def test_compressed_bytes_are_counted() -> None:
    history = MemoryStore()
    history.restore("one", 119, fed(SHORT))
    first = history.num_bytes
    assert 0 < first < sum(map(len, SHORT))
    history.restore("two", 119, fed(SHORT))
    assert history.num_bytes < 2.2 * first
    assert_same(history.at(0), fed(SHORT))


def test_an_event_adds_its_payload_and_its_entry_in_the_index_to_the_bytes() -> None:
    history, state = MemoryStore(), EngineState()
    append(history, SHORT[:3], state)
    before = history.num_bytes
    append(history, SHORT[:5], state, 3)
    assert history.num_bytes - before == sum(len(own) + 50 for own in SHORT[3:5])


def test_each_piece_is_counted_with_what_it_takes_beside_its_bytes() -> None:
    history = MemoryStore()
    before = history.num_bytes
    history._store(b"x" * 100)
    assert history.num_bytes - before > 100


def test_a_finished_request_beyond_the_last_is_not_recorded() -> None:
    history = MemoryStore()
    history.restore("one", 119, fed(SHORT))
    last = history._finished[-1]
    with pytest.raises(WireError, match="is not recorded"):
        history._finished_request(last.first + last.count)
