"""Every moment of a history against a state that was fed the events up to it."""

import gc
import random
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest

from seqtop.history import keyframe, segments
from seqtop.history import memory_store as history_module
from seqtop.history.event_index import EventIndex, EventKind
from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import Cursor, RecordingError
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, snapshot
from seqtop.state.freeze import freeze
from seqtop.state.snapshot import share_finished
from seqtop.wire import codec, parsing
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Heartbeat, RequestFinished, SequenceUpdate, Step
from tests.support.event_script import EventScript
from tests.support.waiting import wait_until

MAX_FINISHED = 40


def payloads(*args: object, **options: object) -> list[bytes]:
    return [codec.encode(event) for event in EventScript(*args, **options)]


LONG = payloads(1, 2_000)
SHORT = payloads(2, 120)


def fed(script: list[bytes], *, max_finished: int = MAX_FINISHED) -> EngineState:
    """A fresh state that was fed these events and knows of nothing else."""
    state = EngineState(max_finished=max_finished)
    for payload in script:
        state.apply(parsing.event(payload))
    return state


def record(
    script: list[bytes], history: MemoryStore, *, state: EngineState | None = None
) -> MemoryStore:
    state = state or EngineState(max_finished=MAX_FINISHED)
    for number, payload in enumerate(script):
        event = parsing.event(payload)
        state.apply(event)
        history.append(number, payload, event, state)
    return history


def assert_same(found: EngineState, wanted: EngineState) -> None:
    for field in msgspec.structs.fields(EngineState):
        assert getattr(found, field.name) == getattr(wanted, field.name), field.name
    assert list(found.requests) == list(wanted.requests)  # in order of arrival


@pytest.fixture
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short batches and segments, so that a short script has many."""
    monkeypatch.setattr(segments, "BATCH_BYTES", 4_000)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)


@pytest.fixture(scope="module")
def long() -> MemoryStore:
    return record(LONG, MemoryStore())


def test_script_is_rich_and_valid() -> None:
    state = fed(LONG, max_finished=10_000)
    assert state.num_anomalies == 0, state.last_anomaly
    assert state.num_steps_seen == 2_000
    requests, sequences = state.requests.values(), state.sequences.values()
    assert {request.last_preemption_mode for request in requests} == {None, "swap", "recompute"}
    assert {request.finish_reason for request in requests} == {None, "stop", "length", "abort"}
    assert any(sequence.parent_seq_id is not None for sequence in sequences)
    assert any(sequence.top_logprobs for sequence in sequences)
    assert any(sequence.num_cached_tokens for sequence in sequences)


def test_any_moment_equals_a_fresh_state_fed_so_many_events(long: MemoryStore) -> None:
    draw = random.Random(3)
    wanted = {draw.randrange(len(LONG) + 1) for _ in range(200)}
    fresh = EngineState(max_finished=MAX_FINISHED)
    assert (long.first, long.last) == (0, len(LONG))
    for position, payload in enumerate([None, *LONG]):
        if payload is not None:
            fresh.apply(parsing.event(payload))
        if position in wanted:
            assert_same(long.at(position), fresh)


@pytest.mark.usefixtures("fine")
def test_moments_are_exact_across_many_segments_and_while_the_newest_grows() -> None:
    history, state = MemoryStore(), EngineState(max_finished=4)
    draw, keyframes = random.Random(4), set()
    for number, payload in enumerate(SHORT):
        event = parsing.event(payload)
        state.apply(event)
        history.append(number, payload, event, state)
        assert_same(history.at(number + 1), state)
        keyframes.add(history.keyframe_before(number + 1))
        position = draw.randrange(number + 2)
        assert_same(history.at(position), fed(SHORT[:position], max_finished=4))
    assert len(keyframes) > 5


def test_states_belong_to_whoever_asked(long: MemoryStore) -> None:
    before, after = long.at(1_000), long.at(1_000)
    for payload in LONG[1_000:1_400]:
        event = parsing.event(payload)
        after.apply(event)
    assert_same(before, long.at(1_000))
    assert_same(after, long.at(1_400))


def test_seek_by_step(long: MemoryStore) -> None:
    state = EngineState(max_finished=MAX_FINISHED)
    for payload in LONG:
        event = parsing.event(payload)
        if isinstance(event, Step) and event.step == 701:
            break
        state.apply(event)
    assert_same(long.seek(700), state)
    assert long.seek(-1).info is not None  # what there was before step 0
    assert long.seek(-5) == long.at(0)
    assert long.seek(5_000) == long.at(long.last)


def scan(history: MemoryStore) -> Iterator[tuple[int, EventKind]]:
    """What a look at every event says of each moment."""
    for position, event in history.events(0, history.last):
        kind = EventKind(0)
        if isinstance(event, RequestFinished):
            kind |= EventKind.FINISH
        if isinstance(event, Step) and event.preemptions:
            kind |= EventKind.PREEMPTION
        if isinstance(event, Step) and (
            event.execute.blocks_to_swap_in or event.execute.blocks_to_swap_out
        ):
            kind |= EventKind.SWAP
        yield position, kind


@pytest.mark.parametrize(
    "kind",
    [
        EventKind.FINISH,
        EventKind.PREEMPTION,
        EventKind.SWAP,
        EventKind.PREEMPTION | EventKind.FINISH,
    ],
)
def test_next_and_previous_of_a_kind(long: MemoryStore, kind: EventKind) -> None:
    places = [position for position, found in scan(long) if found & kind]
    assert len(places) > 20
    for position in range(0, long.last + 1, 7):
        after = [place for place in places if place > position]
        before = [place for place in places if place < position]
        assert long.index.next(kind, position) == (after[0] if after else None)
        assert long.index.previous(kind, position) == (before[-1] if before else None)


def test_moment_at_a_time(long: MemoryStore) -> None:
    times = [long.index[position].time for position in range(long.last + 1)]
    assert times == sorted(times)
    draw = random.Random(5)
    for _ in range(100):
        time = draw.uniform(times[1] - 1, times[-1] + 1)
        wanted = max((p for p, at in enumerate(times) if at <= time), default=0)
        assert long.index.at_time(time) == wanted


def test_walking_by_steps_visits_the_end_of_each_step_once(long: MemoryStore) -> None:
    ends = {}
    for position, event in long.events(0, long.last):
        ends[event.step if isinstance(event, Step) else max(ends, default=-1)] = position
    position, forward = long.first, []
    while (found := long.index.next_step(position)) is not None:
        position = found
        forward.append(position)
    assert forward == [place for step, place in ends.items() if step >= 0]
    backward = [position]
    while (found := long.index.previous_step(position)) is not None:
        position = found
        backward.append(position)
    assert backward[::-1] == list(ends.values())


@pytest.mark.usefixtures("fine")
def test_ring_drops_the_oldest_segments_and_stays_exact() -> None:
    script = payloads(6, 400)
    whole = record(script, MemoryStore())
    history = record(script, MemoryStore(max_bytes=whole.num_bytes // 4))
    assert history.num_bytes < whole.num_bytes // 4 + 100_000
    assert 0 < history.first < history.last == len(script)
    assert history.first == history.keyframe_before(history.first)
    assert len(history.index) == history.last - history.first + 1
    for position in (history.first, history.first + 1, history.last - 30, history.last):
        assert_same(history.at(position), fed(script[:position]))
        assert history.index[position] == whole.index[position]
    assert_same(history.at(0), fed(script[: history.first]))  # the nearest there is
    previous = history.index.previous(EventKind.FINISH, history.first + 5)
    assert previous is None or previous >= history.first
    with pytest.raises(IndexError):
        history.index[history.first - 1]
    with pytest.raises(RecordingError, match="no longer on record"):
        history._payloads(history.first, history.last)
    few = record(script, MemoryStore(max_events=50))
    assert len(few.index) < 120
    assert_same(few.at(few.last), fed(script))


@pytest.mark.usefixtures("fine")
def test_nothing_seen_before_a_gap_or_a_restart_is_lost() -> None:
    state, history = EngineState(), MemoryStore()
    history.restore("one", -1, state)
    record(SHORT[:60], history, state=state)
    before = freeze(state)
    resynced = fed(SHORT[:100])
    history.restore("one", 99, resynced)
    for number in range(100, 120):
        event = parsing.event(SHORT[number])
        resynced.apply(event)
        history.append(number, SHORT[number], event, resynced)
    other = payloads(7, 30, incarnation="two")
    restarted = fed(other[:10])
    history.restore("two", 9, restarted)
    record_from(other, 10, history, restarted)

    assert [(gap.position, gap.restarted, gap.num_missed) for gap in history.gaps] == [
        (61, False, 40),
        (82, True, 10),
    ]
    assert [str(gap) for gap in history.gaps] == ["40 messages missing", "the engine was restarted"]
    assert history.index[61].kind == EventKind.RESYNC
    assert history.index[82].kind == EventKind.RESYNC | EventKind.RESTART
    assert_same(history.at(60), before)
    assert_same(history.at(61), fed(SHORT[:100]))
    assert_same(history.at(81), fed(SHORT[:120]))
    assert_same(history.at(82), fed(other[:10]))
    assert_same(history.at(history.last), fed(other))
    assert_same(history.seek(8), fed_to_step(other, 8))
    old_step = history.index[50].step
    assert history.at(history.index.at_step(old_step, near=50)).step == old_step
    assert [position for position, event in history.events(0, history.last) if event is None] == [
        61,
        82,
    ]
    assert history.index.next_step(81) is not None
    assert history.index.previous_step(82) == 81


def record_from(script: list[bytes], start: int, history: MemoryStore, state: EngineState) -> None:
    for number in range(start, len(script)):
        event = parsing.event(script[number])
        state.apply(event)
        history.append(number, script[number], event, state)


def fed_to_step(script: list[bytes], step: int) -> EngineState:
    steps = [parsing.event(payload) for payload in script]
    stop = next(n for n, event in enumerate(steps) if isinstance(event, Step) and event.step > step)
    return fed(script[:stop])


@pytest.mark.usefixtures("fine")
def test_cursor_goes_anywhere_and_tells_what_changed() -> None:
    history = record(SHORT, MemoryStore())
    cursor, draw = Cursor(history, 0), random.Random(8)
    replaced = 0
    for _ in range(150):
        before, old = freeze(cursor.state), cursor.state
        target = cursor.position + draw.choice([1, 1, 1, 5, 30, -1, -40, 200])
        touched = cursor.move(target)
        assert cursor.position == min(max(target, 0), history.last)
        assert_same(cursor.state, history.at(cursor.position))
        if touched is None:
            replaced += 1
            continue
        assert cursor.state is old
        changed = {
            seq_id
            for seq_id in before.sequences.keys() | cursor.state.sequences.keys()
            if before.sequences.get(seq_id) != cursor.state.sequences.get(seq_id)
        }
        assert changed <= touched
    assert 0 < replaced < 100


def test_events_come_back_as_they_were(long: MemoryStore) -> None:
    found = list(long.events(500, 700))
    assert [position for position, _ in found] == list(range(501, 701))
    assert [codec.encode(event) for _, event in found] == LONG[500:700]
    assert list(long.events(700, 700)) == []


@pytest.mark.usefixtures("fine")
def test_finished_requests_are_shared_and_never_changed_for_others() -> None:
    state, history = EngineState(), MemoryStore()
    record(SHORT, history, state=state)
    end = history.last
    name = state.finished[0]
    seq_id = state.requests[name].seq_ids[0]
    assert history.at(end).requests[name] is history.at(end - 1).requests[name]
    wanted = codec.encode(state.sequences[seq_id])
    late = Step(
        step=10_000,
        start_time=1.0,
        time=2.0,
        execute=parsing.event(next(p for p in SHORT if b"Step" in p[:8])).execute,
        sequences=[
            SequenceUpdate(
                seq_id=seq_id,
                status=SequenceStatus.RUNNING,
                num_computed_tokens=1,
                text_delta="a ghost",
            )
        ],
        stats=state.stats,
    )
    payload = codec.encode(late)
    event = parsing.event(payload)
    state.apply(event)
    history.append(len(SHORT), payload, event, state)
    assert state.sequences[seq_id].text.endswith("a ghost")
    assert_same(history.at(end + 1), state)
    assert codec.encode(history.at(end).sequences[seq_id]) == wanted


def test_share_takes_over_equal_finished_requests_alone() -> None:
    old, new = fed(SHORT), fed(SHORT)
    same, other = new.finished[0], new.finished[1]
    new.sequences[new.requests[other].seq_ids[0]].text += "!"
    share_finished(new, old)
    assert new.requests[same] is old.requests[same]
    assert new.requests[other] is not old.requests[other]
    waiting = next(name for name in new.requests if name not in new.finished)
    assert new.requests[waiting] is not old.requests[waiting]


def test_figures_beyond_8_bytes_and_broken_clocks_are_survived() -> None:
    history, state = MemoryStore(), EngineState()
    for number, time in ((2**64 - 1, float("inf")), (5, 10.0), (6, float("nan")), (7, 11.0)):
        event = Heartbeat(time=time, step=0)
        state.step = 2**64 - 1
        history.append(number, codec.encode(event), event, state)
        state.time = time
    assert len(history.index) == 5
    times = [history.index[position].time for position in range(5)]
    assert all(one <= two for one, two in pairwise(times))
    assert history.index.at_time(0.0) >= 0


@pytest.mark.usefixtures("fine")
@pytest.mark.parametrize("large", [False, True])
def test_a_snapshot_is_kept_as_it_came(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:  # so that a thread compresses it
        monkeypatch.setattr(history_module, "_LARGE_BYTES", 1_000)
    joined = fed(LONG[:1_000])
    assert joined.finished
    encoded = codec.encode(joined)
    history = MemoryStore()
    monkeypatch.setattr(keyframe.FinishedArchive, "take", refuse_to_take)
    history.restore("one", 999, joined, encoded=[encoded])
    monkeypatch.undo()
    assert_same(history.at(0), fed(LONG[:1_000]))
    record_from(LONG[:1_300], 1_000, history, joined)
    for position in (0, 1, 150, 300):
        assert_same(history.at(position), fed(LONG[: 1_000 + position]))
    wait_until(lambda: history.num_bytes < len(encoded))
    assert_same(history.at(1), fed(LONG[:1_001]))


def refuse_to_take(*_: object) -> None:
    raise AssertionError("encoded once more")


def test_what_is_dropped_before_it_is_compressed_counts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_module, "_LARGE_BYTES", 1_000)
    held = MemoryStore(max_bytes=1)
    state = fed(LONG[:1_000])
    encoded = [codec.encode(state)]
    with held.lock:  # the thread has to wait
        held.restore("one", 999, state, encoded=encoded)
        held.restore("two", 5, state, encoded=encoded)  # and the first is dropped
    wait_until(lambda: held.num_bytes < len(encoded[0]))
    assert held.num_bytes == sum(segment.keyframe.size for segment in held._segments)


@pytest.mark.parametrize("size", [2**20, history_module._LARGE_BYTES + 1])
def test_what_is_compressed_takes_no_more_memory_than_is_counted(size: int) -> None:
    history, data = MemoryStore(), bytes(size)
    tracemalloc.start()
    try:
        stored = history._store([data])
        wait_until(lambda: stored.size < size // 100)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < size // 20


def test_the_collector_is_on_again_after_a_state_was_loaded() -> None:
    assert gc.isenabled()
    snapshot.load(codec.encode(fed(SHORT)), max_finished=1)
    assert gc.isenabled()
    with pytest.raises(WireError):
        snapshot.load(b"\x81", max_finished=1)
    assert gc.isenabled()


def test_state_that_cannot_be_encoded_leaves_the_history_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 5_000)

    def refuse(*_: object) -> None:
        raise WireError("not encodable")

    history = MemoryStore()
    history.restore("one", -1, EngineState(max_finished=MAX_FINISHED))
    monkeypatch.setattr(keyframe.FinishedArchive, "take", refuse)
    record(SHORT, history)
    assert history.keyframe_before(history.last) == 0
    assert_same(history.at(history.last), fed(SHORT))


def test_empty_history() -> None:
    history = MemoryStore()
    assert (history.first, history.last) == (0, 0)
    assert history.at(3) == EngineState()
    assert list(history.events(0, 5)) == []
    assert Cursor(history, 7).move(9) == set()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: frame.finished.append((0, 10**15)),
        lambda frame: frame.finished.clear(),
        lambda frame: setattr(frame, "order", frame.order[:-1]),
        lambda frame: setattr(frame, "order", frame.order + frame.order[:4]),
        lambda frame: setattr(frame, "order", b"\xff\xff\xff\xff" + frame.order),
        lambda frame: setattr(frame, "order", b""),
        lambda frame: setattr(frame, "flight", msgspec.Raw(b"\x80\x80")),
    ],
)
def test_keyframe_that_contradicts_itself_is_refused(spoil: object) -> None:
    archive = keyframe.FinishedArchive()
    state = fed(SHORT)
    taken = archive.take(state)
    encoded = b"".join(taken.keyframe)
    assert_same(keyframe.restore(encoded, taken.ended.__getitem__), state)
    frame = codec.decode(encoded, keyframe.Keyframe)
    spoil(frame)
    with pytest.raises(WireError):
        keyframe.restore(codec.encode(frame), taken.ended.__getitem__)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda entry: setattr(entry.request, "finish_reason", None),
        lambda entry: entry.request.spans.clear(),
        lambda entry: entry.request.seq_ids.append(10**6),
        lambda entry: setattr(entry.sequences[0], "request_id", "another"),
    ],
)
def test_archive_that_contradicts_itself_is_refused(spoil: object) -> None:
    entries = keyframe.FinishedArchive().take(fed(SHORT)).ended
    assert keyframe.decode_ended(keyframe.encode_ended(entries)) == entries
    spoil(entries[0])
    with pytest.raises(WireError, match="archive"):
        keyframe.decode_ended(keyframe.encode_ended(entries))


def test_marks_of_several_starts_are_searched_apart() -> None:
    marks = EventIndex()
    for number in range(5):
        marks.append(number, 10.0 + number, number, EventKind(0))
    marks.append(2, 5.0, 1, EventKind.RESYNC | EventKind.RESTART)
    marks.append(3, 16.0, 2, EventKind(0))
    assert marks[5] == (2, 14.0, 1, EventKind.RESYNC | EventKind.RESTART)
    assert marks.at_step(2) == 6
    assert marks.at_step(0) == 5  # the nearest of this start
    assert marks.at_step(2, near=3) == 2
    assert marks.at_step(99, near=0) == 4
    assert marks.next_step(4) == 5
    marks.drop_before(5)
    assert (marks.first, marks.last, len(marks)) == (5, 6, 2)
    assert marks.at_step(2) == 6
    assert marks.previous_step(5) is None
