"""The scrubber shows a position in the history and can be dragged."""

import re

import pytest
from textual.pilot import Pilot

from seqtop.history.playback import Playback
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.scrubber import Scrubber, track
from seqtop.tui.rendering.style import plain
from tests.support.piloting import play, screen


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


@pytest.mark.parametrize(("share", "expected"), [
    (0.0, "●────┤"), (1.0, "├────●"), (0.4, "├─●──┤"), (float("nan"), "●────┤"), (9.0, "├────●"),
])  # fmt: skip
def test_the_knob_stays_on_the_line(share: float, expected: str) -> None:
    assert plain(track(share, 6)) == " " + expected


def test_a_recording_always_shows_the_line(live: SeqtopApp) -> None:
    history = live.ui.source.history
    app = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        assert "├" not in screen(app)
        assert "●──" in screen(app)
        await pilot.press("L")
        await pilot.pause()
        assert "──●" in screen(app)

    play(app, act, (120, 30))
