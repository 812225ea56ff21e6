"""The state at every position against a state that was fed the events up to it."""

import random

import pytest

from seqtop.history.event_index import EventKind
from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import Cursor
from seqtop.state import EngineState
from seqtop.state.freeze import freeze
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Step
from tests.support.recordings import MAX_FINISHED, append, assert_same, encoded, fed

SHORT = encoded(2, 120)


def test_script_is_rich_and_valid(long_script: list[bytes]) -> None:
    state = fed(long_script, max_finished=10_000)
    assert state.num_anomalies == 0, state.last_anomaly
    assert state.num_steps_seen == 2_000
    requests, sequences = state.requests.values(), state.sequences.values()
    assert {request.last_preemption_mode for request in requests} == {None, "swap", "recompute"}
    assert {request.finish_reason for request in requests} == {None, "stop", "length", "abort"}
    assert any(sequence.parent_seq_id is not None for sequence in sequences)
    assert any(sequence.top_logprobs for sequence in sequences)
    assert any(sequence.num_cached_tokens for sequence in sequences)


def test_any_position_equals_a_new_state_fed_so_many_events(
    long: MemoryStore, long_script: list[bytes]
) -> None:
    draw = random.Random(3)
    wanted = {draw.randrange(len(long_script) + 1) for _ in range(60)}
    fresh = EngineState(max_finished=MAX_FINISHED)
    assert (long.first, long.last) == (0, len(long_script))
    for position, payload in enumerate([None, *long_script]):
        if payload is not None:
            fresh.apply(parsing.event(payload))
        if position in wanted:
            assert_same(long.at(position), fresh)


@pytest.mark.usefixtures("short_segments")
def test_states_are_exact_across_many_segments_and_while_the_newest_grows() -> None:
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


def test_states_are_independent_of_each_other(long: MemoryStore, long_script: list[bytes]) -> None:
    before, after = long.at(1_000), long.at(1_000)
    for payload in long_script[1_000:1_400]:
        event = parsing.event(payload)
        after.apply(event)
    assert_same(before, long.at(1_000))
    assert_same(after, long.at(1_400))


def at_step(timeline: MemoryStore, step: int) -> EngineState:
    return timeline.at(timeline.index.at_step(step))


def test_seek_by_step(long: MemoryStore, long_script: list[bytes]) -> None:
    state = EngineState(max_finished=MAX_FINISHED)
    for payload in long_script:
        event = parsing.event(payload)
        if isinstance(event, Step) and event.step == 701:
            break
        state.apply(event)
    assert_same(at_step(long, 700), state)
    assert at_step(long, -1).info is not None  # what there was before step 0
    assert at_step(long, -5) == long.at(0)
    assert at_step(long, 5_000) == long.at(long.last)


@pytest.mark.usefixtures("short_segments")
def test_states_before_a_gap_and_a_restart_can_be_read() -> None:
    state, history = EngineState(), MemoryStore()
    history.restore("one", -1, state)
    append(history, SHORT[:60], state)
    before = freeze(state)
    resynced = fed(SHORT[:100])
    history.restore("one", 99, resynced)
    append(history, SHORT[:120], resynced, 100)
    other = encoded(7, 30, incarnation="two")
    restarted = fed(other[:10])
    history.restore("two", 9, restarted)
    append(history, other, restarted, 10)

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
    assert_same(at_step(history, 8), fed_to_step(other, 8))
    old_step = history.index[50].step
    assert history.at(history.index.at_step(old_step, near=50)).step == old_step
    assert [position for position, event in history.events(0, history.last) if event is None] == [
        61,
        82,
    ]
    assert history.index.next_step(81) is not None
    assert history.index.previous_step(82) == 81


def fed_to_step(script: list[bytes], step: int) -> EngineState:
    steps = [parsing.event(payload) for payload in script]
    stop = next(n for n, event in enumerate(steps) if isinstance(event, Step) and event.step > step)
    return fed(script[:stop])


@pytest.mark.usefixtures("short_segments")
def test_cursor_moves_anywhere_and_returns_what_changed() -> None:
    history = MemoryStore()
    append(history, SHORT, EngineState(max_finished=MAX_FINISHED))
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


def test_events_come_back_as_they_were(long: MemoryStore, long_script: list[bytes]) -> None:
    events = list(long.events(500, 700))
    assert [position for position, _ in events] == list(range(501, 701))
    assert [codec.encode(event) for _, event in events] == long_script[500:700]
    assert list(long.events(700, 700)) == []


def test_empty_timeline() -> None:
    history = MemoryStore()
    assert (history.first, history.last) == (0, 0)
    assert history.at(3) == EngineState()
    assert list(history.events(0, 5)) == []
    assert Cursor(history, 7).move(9) == set()
