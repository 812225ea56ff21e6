"""Going through the past: every key, and that what is shown is exactly what was."""

import functools
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Input

from seqtop.history import FileStore, FileWriter, segments
from seqtop.history.event_index import EventKind
from seqtop.history.file_format import KeyframeHeader
from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import RecordingError
from seqtop.live.playback import Playback
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.state.ordering import SequenceView, Sort
from seqtop.text import format as fmt
from seqtop.tui import seek
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.seek_prompt import SeekPrompt
from seqtop.tui.restarts import RESTART_SECONDS
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.sequences.text_pane import TextPane
from seqtop.tui.time_travel import TimeTravel
from seqtop.tui.ui_state import UiState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, RequestFinished, Step
from tests.support import events as builders
from tests.support.broken_recordings import Unreadable
from tests.support.events import update
from tests.support.piloting import Pilot, notices, play, screen, selected, until, words
from tests.support.random_engine import RandomEngine
from tests.support.recordings import append, encoded, frames_of
from tests.support.scripted import Script, ScriptedSource, scene

PAYLOADS = [codec.encode(event) for event in RandomEngine(13, 60, num_blocks=24)]
STEPS = [
    index for index, payload in enumerate(PAYLOADS) if isinstance(parsing.event(payload), Step)
]
"""The index in `PAYLOADS` of each step."""


def events(count: int = len(PAYLOADS)) -> list[Event]:
    return [parsing.event(payload) for payload in PAYLOADS[:count]]


def fed(count: int) -> EngineState:
    """A fresh state that was fed the first events and knows of nothing else."""
    state = EngineState()
    for event in events(count):
        state.apply(event)
    return state


@functools.cache
def known(count: int) -> EngineState:
    """As `fed`, once for each number: to compare with, not to change."""
    return fed(count)


def until_step_ends(step: int) -> int:
    """The number of events before step `step + 1` begins."""
    return STEPS[step + 1] if step + 1 < len(STEPS) else len(PAYLOADS)


def step_of(count: int) -> int:
    """The last step of the first `count` events."""
    return bisect_left(STEPS, count) - 1


def event_positions(direction: int, count: int, *, preemption: bool) -> list[int]:
    """The numbers of events up to the preemptions or ends, seen from `count` events on."""
    positions = [
        index
        for index, event in enumerate(events(), 1)
        if (isinstance(event, Step) and event.preemptions if preemption
            else isinstance(event, RequestFinished))
    ]  # fmt: skip
    if direction > 0:
        return [position for position in positions if position > count]
    return [position for position in reversed(positions) if position < count]


@pytest.fixture
def recorded() -> ScriptedSource:
    """A source with all events of `PAYLOADS` in its history."""
    return ScriptedSource(*events())


@pytest.fixture
def live(recorded: ScriptedSource) -> SeqtopApp:
    return SeqtopApp(recorded, clock=lambda: 0.0)


@pytest.fixture(params=["engine", "recording"])
def either(request: pytest.FixtureRequest, recorded: ScriptedSource) -> SeqtopApp:
    """The app of a running engine, or of its recording at the end."""
    if request.param == "engine":
        return SeqtopApp(recorded, clock=lambda: 0.0)
    history = recorded.history
    playback = Playback(history, "run.seqtop", paused=True, position=history.last)
    return SeqtopApp(playback, clock=lambda: 0.0)


def assert_is_at(ui: UiState, count: int) -> None:
    """The state and the rows on display are those of the first `count` events."""
    wanted = known(count)
    assert ui.state == wanted
    view = SequenceView()
    view.sort, view.filter = ui.view.sort, ui.view.filter
    view.rebuild(wanted)
    assert ui.view.page(0, 10_000) == view.page(0, 10_000)
    assert ui.view.running == view.running
    assert ui.view.queue.ids == view.queue.ids


def assert_shows(app: SeqtopApp, count: int) -> None:
    """The picture is that of the first `count` events, in every part."""
    wanted = known(count)
    assert_is_at(app.ui, count)
    text = screen(app)
    assert "‖ PAUSED" in text
    if wanted.step >= 0:
        assert f"step {wanted.step} " in text.splitlines()[1]
        assert f"Step {wanted.step}" in text


def scene_goes_on(source: ScriptedSource) -> None:
    """Another step of an engine that runs the first sequence."""
    state = source.state
    source.apply(
        builders.step(
            state.step + 1,
            start_time=state.time,
            time=state.time + 0.01,
            sequences=[update(1, SequenceStatus.RUNNING, 81, tokens=[1], text="more ")],
            stats=state.stats,
        )
    )


def test_every_step_back_and_on_is_exactly_what_was(recorded: ScriptedSource) -> None:
    history, last = recorded.history, len(STEPS) - 1
    playback = Playback(history, "run.seqtop", paused=True, position=history.last)
    for source in (recorded, playback):
        ui = UiState(source)
        ui.sort_by(Sort("out", descending=True))
        for by, steps in ((-1, range(last - 1, -1, -1)), (1, range(1, last + 1))):
            for step in steps:
                ui.time_travel.go(seek.by_steps(by), "")
                ui.update()
                assert ui.paused
                assert_is_at(ui, until_step_ends(step))


def test_stepping_back_and_on_shows_exactly_what_was(either: SeqtopApp) -> None:
    with play(either) as pilot:
        either.ui.sort_by(Sort("out", descending=True))
        last = len(STEPS) - 1
        for step in range(last - 1, last - 7, -1):
            pilot.press("left")
            assert_shows(either, until_step_ends(step))
            if either.ui.engine is not None:
                assert f"of {last}, {last - step} behind." in screen(either)
        for step in range(last - 5, last + 1):
            pilot.press("right")
            assert_shows(either, until_step_ends(step))
        assert "the newest" in screen(either) or either.ui.engine is None
        pilot.press("enter", "tab")
        assert isinstance(either.focused, TextPane)
        pilot.press("left")
        assert_shows(either, until_step_ends(last - 1))


STEP_KEYS = (
    (("comma",), -2),
    (("comma", "comma", "full_stop"), -2),
    (("left_curly_bracket",), -11),
    (("shift+left",), -11),
    (("left_curly_bracket", "left_curly_bracket", "right_curly_bracket"), -11),
    (("left_curly_bracket", "shift+right"), -1),
)


def test_jumps(either: SeqtopApp) -> None:
    with play(either) as pilot:
        for back, on, preemption in (("p", "P", True), ("e", "E", False)):
            jump_to_all(either, pilot, back, on, preemption=preemption)
            pilot.press("L")


def jump_to_all(app: SeqtopApp, pilot: Pilot, back: str, on: str, *, preemption: bool) -> None:
    before = event_positions(-1, len(PAYLOADS), preemption=preemption)
    assert len(before) > 3
    # The newest moment may itself be of the kind: one jumps away from it, not to it.
    for position in before[:3]:
        pilot.press(back)
        assert_shows(app, position)
        event = parsing.event(PAYLOADS[position - 1])
        whom = event.preemptions[0] if preemption else event
        expected = f"Ended here: {whom.request_id}."
        if preemption:
            lost = f"{fmt.plural(whom.num_lost_tokens, 'token')} lost"
            cost = "swapped out" if whom.mode == "swap" else lost
            by = f", for {whom.for_request_id}" if whom.for_request_id else ""
            expected = f"Preempted here: {whom.request_id} ({cost}{by})."
        assert expected in words(app)
        assert app.ui.selection[0].request_id == whom.request_id
    pilot.press(on)
    assert_shows(app, before[1])
    pilot.press("0", on)
    assert_shows(app, before[-1])
    pilot.press(back)
    assert_shows(app, before[-1])
    assert "before this moment in the history." in words(app)


def test_the_ends_of_the_record_are_said(either: SeqtopApp) -> None:
    with play(either, (120, 30)) as pilot:
        if not either.ui.paused:
            pilot.press("space")
        pilot.press("right")
        assert "This is the newest moment so far." in screen(either)
        assert_shows(either, len(PAYLOADS))
        pilot.press("0")
        assert either.ui.state == EngineState()
        assert "No sequence had arrived yet at this moment." in screen(either)
        assert "Before the first step" in screen(either)
        for key in ("left", "left_curly_bracket", "0"):
            pilot.press(key)
            assert "This is the oldest moment in the history." in screen(either)
        pilot.press("right")
        assert "oldest" not in screen(either)
        assert_shows(either, until_step_ends(0))


def test_a_key_that_leads_nowhere_pauses_nothing_and_says_so_until_the_next() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("req-1")
    script.step(prefill={"req-1": 40})
    script.step()
    app = SeqtopApp(source, clock=lambda: 0.0)
    missing = "No preemption before this moment in the history."
    with play(app) as pilot:
        for key in ("p", "P", "e", "w", "right"):
            pilot.press(key)
            assert not app.ui.paused, key
            assert "● LIVE" in screen(app)
        assert notices(app) == ["This is the newest moment so far."]
        pilot.press("p")
        assert notices(app) == [missing]
        app.clear_notifications()
        pilot.press("left", "p")
        assert missing in screen(app)
        pilot.press("down")
        pilot.draw()
        assert app.ui.paused
        assert missing not in screen(app)


@pytest.mark.parametrize("key", ["space", "L"])
def test_the_engine_goes_on_behind(key: str) -> None:
    source = ScriptedSource(*events(STEPS[40]))
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app) as pilot:
        pilot.press("left")
        for event in events()[STEPS[40] :]:
            source.apply(event)
            app.draw()
        pilot.pause()
        assert_shows(app, until_step_ends(38))
        assert f"Step 38 of {len(STEPS) - 1}, {len(STEPS) - 39} behind" in screen(app)
        pilot.press("right", "right")
        assert_shows(app, until_step_ends(40))
        pilot.press(key)
        assert "● LIVE" in screen(app)
        assert "PAUSED" not in screen(app)
        assert app.ui.state is source.state
        assert f"step {len(STEPS) - 1} " in screen(app)


def test_steps_by_keys_and_to_a_step_of_ones_choice(either: SeqtopApp) -> None:
    with play(either, (120, 30)) as pilot:
        for step_keys, step in STEP_KEYS:
            pilot.press(*step_keys)
            assert_shows(either, until_step_ends(len(STEPS) + step))
            pilot.press("L")

        def choose(*keys: str) -> None:
            pilot.press("colon", *keys, "enter")

        choose("1", "7")
        assert isinstance(either.screen, SequencesScreen)
        assert_shows(either, until_step_ends(17))
        assert "not in the history" not in screen(either)
        choose(*"9999")
        assert_shows(either, len(PAYLOADS))
        assert "Step 9,999 is not in the history; this is the nearest." in screen(either)
        pilot.press("colon")
        assert isinstance(either.screen, SeekPrompt)
        pilot.press("x", "enter")
        assert "Type a step or a time: 1234, 12.5s, -3s or 14:03:22." in screen(either)
        pilot.press("escape")
        assert isinstance(either.screen, SequencesScreen)
        assert_shows(either, len(PAYLOADS))


def test_missing_messages_are_said() -> None:
    source = ScriptedSource(*events(STEPS[20]))
    rest = events()[STEPS[30] :]
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 30)) as pilot:
        source.replace(fed(STEPS[30]), num_missed=12)
        for event in rest:
            source.apply(event)
        app.draw()
        pilot.press("colon", "3", "0", "enter")
        assert "12 messages missing" not in screen(app)
        pilot.press("left")
        assert "12 messages missing here." in screen(app)
        pilot.press("left")
        assert "12 messages missing in between." in screen(app)
        assert_shows(app, STEPS[20])
        pilot.press("left")
        assert "missing" not in screen(app)


def test_another_start_of_the_engine_is_said_where_it_was(recorded: ScriptedSource) -> None:
    now = 0.0
    app = SeqtopApp(recorded, clock=lambda: now)
    with play(app, (160, 30)) as pilot:
        fresh = ScriptedSource()
        script = Script(fresh, incarnation="b2")
        script.arrive("new-1")
        recorded.replace(fresh.state)
        script.source = recorded
        script.step(prefill={"new-1": 40})
        script.step()
        pilot.draw()

        def text_after(key: str) -> str:
            pilot.press(key)
            return words(app)

        pilot.pause()
        text = words(app)
        assert "The engine was restarted at 00:00:00;" in text
        assert "running; ',' shows its last step." in text
        assert f"Step {len(STEPS) - 1} of an earlier start of the engine" in text_after("left")
        assert_shows(app, len(PAYLOADS))
        text_after("left")
        assert_shows(app, until_step_ends(len(STEPS) - 2))
        now = RESTART_SECONDS + 1
        assert "restart" not in text_after("L")
        assert "restart" not in text_after("left")
        assert "The engine was restarted here." in text_after("left")
        earlier = text_after("left")
        assert f"Step {len(STEPS) - 1} of an earlier start of the engine" in earlier
        assert "The engine was restarted in between." in earlier
        assert_shows(app, len(PAYLOADS))
        assert "restart" not in text_after("left")
        pilot.press("space", "space", "left")
        assert "The engine was restarted in between." in text_after("0")
        assert "restart" not in text_after("right")


def test_unreadable_messages_are_said() -> None:
    app = SeqtopApp(ScriptedSource(*events(), history=Unreadable()), clock=lambda: 0.0)
    with play(app) as pilot:
        pilot.press("left")
        assert "The history cannot be read: it is broken." in screen(app)
        assert_shows(app, len(PAYLOADS))


def test_the_past_may_be_dropped_while_one_looks_at_it() -> None:
    history = MemoryStore(max_events=1)
    source = ScriptedSource(*events(), history=history)
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app) as pilot:
        pilot.press("left")
        state = app.ui.state
        source.replace(fed(len(PAYLOADS)), num_missed=5)
        pilot.draw()
        assert history.first == history.last > 0
        assert app.ui.state is state
        assert_shows(app, until_step_ends(len(STEPS) - 2))
        pilot.press("left")
        assert_shows(app, len(PAYLOADS))


def test_while_one_types_no_key_goes_through_time(live: SeqtopApp) -> None:
    with play(live) as pilot:
        pilot.press("slash", *"p.e,0L{", "left", "right")
        assert live.screen.query_one("#filter-input", Input).value == "p.e,0L{"
        assert not live.ui.paused


def test_a_recording_has_a_length_and_is_played(recorded: ScriptedSource) -> None:
    now = 0.0
    playback = Playback(recorded.history, "run.seqtop", paused=True, speed=2.5, clock=lambda: now)
    app = SeqtopApp(playback, clock=lambda: 0.0)
    with play(app, (120, 30)) as pilot:
        assert "▷ REPLAY" in screen(app)
        pilot.press("right", "right_curly_bracket")
        assert_shows(app, until_step_ends(10))
        assert f"Step 10 of {len(STEPS) - 1}, 00:" in screen(app)
        assert "at 2.5x." in screen(app)
        pilot.press("0", "space")
        assert not app.ui.paused
        assert "‖ PAUSED" not in screen(app)
        assert "space pauses." in screen(app)
        for seconds in (0.1, 0.3):  # the first moment has no time of its own
            now = seconds
            app.draw()
        pilot.pause()
        assert app.ui.time_travel.position > 1
        assert app.ui.state == fed(app.ui.time_travel.position)
        pilot.press("space")
        assert app.ui.paused


def test_a_recording_plays_by_itself_and_begins_again(recorded: ScriptedSource) -> None:
    app = SeqtopApp(Playback(recorded.history, "run.seqtop", speed=200.0), clock=lambda: 0.0)
    travel = app.ui.time_travel
    with play(app, (120, 30)) as pilot:
        until(pilot, lambda: app.ui.paused)
        assert_shows(app, len(PAYLOADS))
        positions: list[int] = []
        travel.add_listener(lambda _: positions.append(travel.position))
        pilot.press("space")
        until(pilot, lambda: app.ui.paused)
        assert positions[-1] == recorded.history.last
        assert 0 in positions


def test_listeners_of_a_recording_are_given_what_changed(recorded: ScriptedSource) -> None:
    history = recorded.history
    travel = TimeTravel(Playback(history, "run.seqtop", paused=True))
    changes: list[StateChange] = []
    travel.add_listener(changes.append)
    assert changes == [StateChange(travel.state, None)]
    finish = history.index.next(EventKind.FINISH, 0)
    assert finish is not None
    travel.go(seek.to_position(finish - 1), "")
    travel.go(seek.to_position(finish), "")
    event = next(event for _, event in history.events(finish - 1, finish))
    assert isinstance(event, RequestFinished)
    assert set(changes[-1].touched or ()) == {*travel.state.requests[event.request_id].seq_ids}
    assert changes[-1].state is travel.state is travel.newest


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileStore]:
    """A recording whose first and third segments cannot be read."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 10_000)
    path = tmp_path / "run.seqtop"
    with FileWriter(path) as writer:
        append(writer, encoded(31, 150, num_blocks=24), EngineState())
    data = bytearray(path.read_bytes())
    frames = frames_of(path)
    keyframes = [n for n, frame in enumerate(frames) if isinstance(frame.header, KeyframeHeader)]
    for offset in (frames[0].offset, frames[keyframes[2] + 1].offset):
        data[offset + 15] ^= 0x10
    path.write_bytes(data)
    with FileStore(path) as recording:
        yield recording


def test_unreadable_segments_are_skipped_with_a_message(damaged: FileStore) -> None:
    starts = [0]
    while (position := damaged.keyframe_after(starts[-1])) is not None:
        starts.append(position)
    now = 0.0
    travel = TimeTravel(Playback(damaged, "run", clock=lambda: now))
    noticed: list[StateChange] = []
    travel.add_listener(noticed.append)
    assert travel.position == starts[1]
    assert "damaged at byte" in travel.seek_message
    travel.go(seek.to_position(starts[2]), "")
    travel.resume()
    travel.play()
    now = 0.5
    assert travel.play()
    assert travel.position >= starts[3]
    assert "damaged at byte" in travel.seek_message
    now = 1e6
    travel.play()
    assert not travel.play()
    assert travel.paused
    assert travel.position == damaged.last
    travel.go(seek.to_position(starts[2] + 1), "")
    assert travel.position == damaged.last, "the position stays readable"
    assert "damaged at byte" in travel.seek_message
    assert noticed[-1].touched is None, "a failed move is one, too"


@pytest.mark.parametrize("is_keyframe_readable", [True, False])
def test_a_damaged_end_is_shown_as_far_as_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_keyframe_readable: bool
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 10_000)
    path = tmp_path / "run.seqtop"
    with FileWriter(path) as writer:
        append(writer, encoded(31, 150, num_blocks=24), EngineState())
    data, frames = bytearray(path.read_bytes()), frames_of(path)
    keyframe = [n for n, frame in enumerate(frames) if isinstance(frame.header, KeyframeHeader)][-1]
    for number in [keyframe + 1, *([] if is_keyframe_readable else [keyframe])]:
        data[frames[number].offset + 15] ^= 0x10
    path.write_bytes(data)
    with FileStore(path) as recording:
        last = recording.keyframe_before(recording.last)
        travel = TimeTravel(Playback(recording, "run", paused=True, position=recording.last))
        assert travel.position == (last if is_keyframe_readable else last - 1)
        assert travel.state == recording.at(travel.position)
        assert "damaged at byte" in travel.seek_message


def test_recording_without_any_readable_state(damaged: FileStore) -> None:
    damaged.close()
    with pytest.raises(RecordingError):
        TimeTravel(Playback(damaged, "run"))


def test_empty_recording_has_nothing_to_show(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    path.write_bytes(b"")
    with FileStore(path) as recording:
        travel = TimeTravel(Playback(recording, "run"))
        assert travel.play()
        assert not travel.play()
        assert travel.paused
        travel.go(seek.to_position(5), "nothing")
        assert travel.position == 0
        assert travel.state == EngineState()


def test_pause(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app, (100, 30)) as pilot:
        pilot.press("space")
        assert "‖ PAUSED" in screen(app)
        assert "Step 40, the newest." in screen(app)
        name = selected(app)
        step = app.ui.state.step
        for _ in range(3):
            scene_goes_on(source)
        pilot.draw()
        assert "3 behind." in screen(app)
        assert app.ui.state.step == step
        assert "PAUSED" in screen(app)
        pilot.press("down", "up")
        assert selected(app) == name
        assert f"step {step} " in screen(app)
        pilot.press("space")
        assert "PAUSED" not in screen(app)
        assert f"step {step + 3} " in screen(app)


def test_the_state_is_swapped_while_paused(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("space")
        other = ScriptedSource()
        scene(other, engine_id="again")
        source.replace(other.state)
        pilot.draw()
        assert " demo " in screen(app)
        pilot.press("space")
        assert " again " in screen(app)
        source.replace(EngineState())
        pilot.draw()
        assert "req-1" not in screen(app)
