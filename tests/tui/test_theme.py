"""The app with other themes."""

import pytest

from seqtop.tui.app import SeqtopApp
from tests.support.piloting import play, screen


@pytest.mark.parametrize("theme", ["seqtop-light", "textual-light", "nord", "dracula"])
def test_other_themes_work(app: SeqtopApp, theme: str) -> None:
    with play(app) as pilot:
        app.theme = theme
        pilot.pause()
        assert "req-1" in screen(app)
