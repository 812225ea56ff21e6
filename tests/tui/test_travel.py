"""The other ways through time: by what was typed, by swaps, by dragging, on every screen."""

import re

import pytest
from textual.pilot import Pilot

from seqtop.history.event_index import EventKind
from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.scrubber import Scrubber, track
from seqtop.tui.rendering.style import plain
from tests.support.event_script import EventScript
from tests.support.piloting import SCREENS, play, screen
from tests.support.scripted import START, ScriptedSource, scene


@pytest.fixture
def live() -> SeqtopApp:
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile="?")
    return SeqtopApp(source, clock=lambda: 0.0)


def test_a_time_is_as_good_as_a_step(live: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        async def choose(text: str) -> None:
            await pilot.press("colon", *text, "enter")
            await pilot.pause()

        await choose("1s")
        assert live.ui.state.time == pytest.approx(START + 1.0, abs=0.06)
        before = live.ui.state.time
        await choose("-500ms")
        assert live.ui.state.time == pytest.approx(before - 0.5, abs=0.06)
        await choose("22:13:21.5")
        assert live.ui.state.time == pytest.approx(START + 1.5, abs=0.06)
        await choose("2h")
        assert "The history ends earlier: this is its last moment." in screen(live)

    play(live, act, (120, 30))


def test_swaps_are_found() -> None:
    source = ScriptedSource(*EventScript(11, 60, num_blocks=24), history=MemoryStore())
    app = SeqtopApp(source, clock=lambda: 0.0)
    history = source.history
    assert history is not None
    assert history.index.previous(EventKind.SWAP, history.last) is not None

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("w")
        await pilot.pause()
        first = app.ui.time_travel.position
        assert history.index[first].kind & EventKind.SWAP
        await pilot.press("w")
        assert app.ui.time_travel.position < first
        await pilot.press("W")
        assert app.ui.time_travel.position == first
        await pilot.press("0", "w")
        await pilot.pause()
        assert "No swap before this moment in the history." in " ".join(screen(app).split())

    play(app, act, (120, 30))


def test_a_line_shows_where_and_the_mouse_drags_it(live: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        scrubber = live.screen.query_one(Scrubber)
        assert not scrubber.display
        await pilot.press("left")
        await pilot.pause()
        assert scrubber.display
        assert re.search("├─+●─+┤", screen(live))
        await pilot.mouse_down(Scrubber, offset=(60, 0))
        await pilot.pause()
        half = live.ui.state.step
        assert 15 < half < 30
        await pilot.hover(Scrubber, offset=(30, 0))
        await pilot.pause()
        assert live.ui.state.step < half
        await pilot.mouse_up(Scrubber, offset=(30, 0))
        reached = live.ui.state.step
        await pilot.hover(Scrubber, offset=(90, 0))
        await pilot.pause()
        assert live.ui.state.step == reached
        await pilot.press("space")
        await pilot.pause()
        assert not scrubber.display

    play(live, act, (120, 30))


def test_by_a_twentieth_of_the_record(live: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        begin, end = START, live.ui.state.time
        await pilot.press(*["ctrl+left"] * 4)
        assert live.ui.state.time == pytest.approx(end - (end - begin) / 5, abs=0.25)
        await pilot.press("ctrl+right")
        assert live.ui.state.time == pytest.approx(end - (end - begin) * 0.15, abs=0.25)
        await pilot.press(*["ctrl+left"] * 25)
        await pilot.pause()
        assert "This is the oldest moment in the history." in screen(live)

    play(live, act, (120, 30))


@pytest.mark.parametrize(("share", "expected"), [
    (0.0, "●────┤"), (1.0, "├────●"), (0.4, "├─●──┤"), (float("nan"), "●────┤"), (9.0, "├────●"),
])  # fmt: skip
def test_the_knob_stays_on_the_line(share: float, expected: str) -> None:
    assert plain(track(share, 6)) == " " + expected


@pytest.mark.parametrize("name", [each.TAB.name for each in SCREENS])
def test_every_screen_shows_the_moment(live: SeqtopApp, name: str) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(str([each.TAB.name for each in SCREENS].index(name) + 1), "p")
        await pilot.pause()
        text = screen(live)
        assert "step 34 " in text.splitlines()[1]
        assert "Preempted here: req-7 (79 tokens lost)." in " ".join(text.split())
        await pilot.press("L")
        await pilot.pause()
        assert "● LIVE" in screen(live)

    play(live, act, (120, 40))


def test_a_recording_always_shows_the_line(live: SeqtopApp) -> None:
    history = live.ui.source.history
    assert history is not None
    app = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        assert "├" not in screen(app)
        assert "●──" in screen(app)
        await pilot.press("L")
        await pilot.pause()
        assert "──●" in screen(app)

    play(app, act, (120, 30))
