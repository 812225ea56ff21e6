"""The scrubber shows a position in the history and can be dragged."""

import re

import pytest

from seqtop.live.playback import Playback
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.scrubber import Scrubber, track
from seqtop.tui.rendering.style import plain
from tests.support.piloting import play, screen


def test_a_line_shows_where_and_the_mouse_drags_it(live: SeqtopApp) -> None:
    with play(live, (120, 30)) as pilot:
        scrubber = live.screen.query_one(Scrubber)
        assert not scrubber.display
        pilot.press("left")
        assert scrubber.display
        assert re.search("├─+●─+┤", screen(live))
        pilot.mouse_down(Scrubber, offset=(60, 0))
        half = live.ui.state.step
        assert 15 < half < 30
        pilot.hover(Scrubber, offset=(30, 0))
        assert live.ui.state.step < half
        pilot.mouse_up(Scrubber, offset=(30, 0))
        reached = live.ui.state.step
        pilot.hover(Scrubber, offset=(90, 0))
        assert live.ui.state.step == reached
        pilot.press("space")
        assert not scrubber.display


@pytest.mark.parametrize(("share", "expected"), [
    (0.0, "●────┤"), (1.0, "├────●"), (0.4, "├─●──┤"), (float("nan"), "●────┤"), (9.0, "├────●"),
])  # fmt: skip
def test_the_knob_stays_on_the_line(share: float, expected: str) -> None:
    assert plain(track(share, 6)) == " " + expected


def test_a_recording_always_shows_the_line(live: SeqtopApp) -> None:
    history = live.ui.source.history
    app = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)
    with play(app, (120, 30)) as pilot:
        assert "├" not in screen(app)
        assert "●──" in screen(app)
        pilot.press("L")
        assert "──●" in screen(app)
