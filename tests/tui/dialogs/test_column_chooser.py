"""Choosing and ordering the columns."""

from typing import Any

from textual.pilot import Pilot
from textual.widgets import OptionList

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.column_chooser import ColumnChooser
from seqtop.tui.settings import Settings
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource


def test_columns_are_chosen_and_ordered(source: ScriptedSource) -> None:
    app = SeqtopApp(source, settings=Settings(columns=("request", "out", "text")))

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("c")
        assert isinstance(app.screen, ColumnChooser)
        assert "[x] Out" in screen(app)
        await pilot.press("escape")
        await pilot.press("c", "down", "K")  # Out before Request
        chooser: Any = app.screen
        options = chooser.query_one(OptionList)
        options.highlighted = options.get_option_index("prio")
        await pilot.press("space", "left", "enter")
        await pilot.pause()
        assert app.ui.preferences.columns == ("out", "request", "prio", "text")
        await pilot.press("c", "r", "right", "J", "enter")
        assert app.ui.preferences.columns[:3] == ("seq", "status", "request")

    play(app, act, (100, 24))


def test_one_column_stays(source: ScriptedSource) -> None:
    app = SeqtopApp(source, settings=Settings(columns=("request",)))

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("c", "space", "enter")
        assert app.ui.preferences.columns == ("request",)

    play(app, act, (40, 10))
