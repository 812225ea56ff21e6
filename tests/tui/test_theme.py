"""The app with other themes."""

import pytest
from rich.color import Color, ColorSystem
from textual.theme import Theme

from seqtop.tui import theme
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.owner_marks import OWNER_STYLES
from tests.support.piloting import play, screen


@pytest.mark.parametrize("name", ["seqtop-light", "textual-light", "nord", "dracula"])
def test_other_themes_work(app: SeqtopApp, name: str) -> None:
    with play(app) as pilot:
        app.theme = name
        pilot.pause()
        assert "req-1" in screen(app)


@pytest.mark.parametrize("full", [theme.DARK, theme.LIGHT])
def test_a_terminal_with_16_colours_tells_the_owners_of_blocks_apart(full: Theme) -> None:
    variables = theme.of_16_colours(full).variables
    fills = [Color.parse(variables[f"style-{name}-fill"]) for name in OWNER_STYLES]
    shown = {fill.downgrade(ColorSystem.STANDARD).number for fill in fills}
    ground = Color.parse(full.background or "").downgrade(ColorSystem.STANDARD).number
    assert len(shown - {ground}) == len(OWNER_STYLES)
