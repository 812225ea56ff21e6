"""Choosing and ordering the columns."""

from typing import Any

from textual.widgets import OptionList

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.column_chooser import ColumnChooser
from seqtop.tui.settings import Settings
from tests.support.piloting import play, screen, words
from tests.support.scripted import ScriptedSource


def test_columns_are_chosen_and_ordered(source: ScriptedSource) -> None:
    app = SeqtopApp(source, settings=Settings(columns=("request", "out", "text")))
    with play(app, (100, 24)) as pilot:
        pilot.press("c")
        assert isinstance(app.screen, ColumnChooser)
        assert "[x] Out" in screen(app)
        pilot.press("escape")
        pilot.press("c", "down", "K")  # Out before Request
        chooser: Any = app.screen
        options = chooser.query_one(OptionList)
        options.highlighted = options.get_option_index("prio")
        pilot.press("space", "left", "enter")
        assert app.ui.preferences.columns == ("out", "request", "prio", "text")
        pilot.press("c", "r", "right", "J", "enter")
        assert app.ui.preferences.columns[:3] == ("seq", "status", "request")


def test_a_chosen_column_says_that_it_has_no_room(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("c")
        text = words(app)
        assert "[x] Request request id" in text
        assert "[x] Seq on, but no room: sequence id" in text
        assert "Space shows or hides, ← → move, r resets, Enter applies, Esc cancels" in text


def test_one_column_stays(source: ScriptedSource) -> None:
    app = SeqtopApp(source, settings=Settings(columns=("request",)))
    with play(app, (40, 10)) as pilot:
        pilot.press("c", "space", "enter")
        assert app.ui.preferences.columns == ("request",)
