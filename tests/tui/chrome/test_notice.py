"""The sentence below the header names the moment on every screen."""

import pytest
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from tests.support.piloting import SCREENS, play, screen


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
