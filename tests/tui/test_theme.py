"""The app with other themes."""

import pytest
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from tests.support.piloting import play, screen


@pytest.mark.parametrize("theme", ["seqtop-light", "textual-light", "nord", "dracula"])
def test_other_themes_work(app: SeqtopApp, theme: str) -> None:
    async def act(pilot: Pilot[int]) -> None:
        app.theme = theme
        await pilot.pause()
        assert "req-1" in screen(app)

    play(app, act)
