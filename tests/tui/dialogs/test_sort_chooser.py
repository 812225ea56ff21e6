"""The dialog that chooses the sort order."""

from typing import Any

from textual.pilot import Pilot
from textual.widgets import OptionList

from seqtop.state.ordering import Sort
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.sort_chooser import SortChooser
from tests.support.piloting import play, screen


def test_sort_chooser(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("s")
        assert isinstance(app.screen, SortChooser)
        await pilot.press("escape")
        assert app.ui.view.sort == Sort()
        await pilot.press("s")
        chooser: Any = app.screen
        options = chooser.query_one(OptionList)
        options.highlighted = options.get_option_index("out")
        await pilot.press("enter")
        await pilot.pause()
        assert app.ui.view.sort == Sort("out", descending=True)
        outs = [len(app.ui.state.sequences[i].output_token_ids) for i in app.ui.view.page(0, 99)]
        assert outs == sorted(outs, reverse=True)
        assert "Out▼" in screen(app)
        await pilot.press("s")
        assert highlighted(app) == "out"
        await pilot.press("home", "enter")
        assert app.ui.view.sort == Sort()

    play(app, act)


def test_a_column_that_was_hidden(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        assert "E2E" not in screen(app)
        await pilot.press("s", "e")
        assert highlighted(app) == "e2e"
        await pilot.press("enter")
        await pilot.pause()
        assert "E2E▼" in screen(app)
        await pilot.press("s", "end")
        await pilot.pause()
        assert "Prompt text the prompt's text" in " ".join(screen(app).split())
        await pilot.press("home", "enter")
        await pilot.pause()
        assert "E2E" not in screen(app)

    play(app, act)


def highlighted(app: SeqtopApp) -> str | None:
    options = app.screen.query_one(OptionList)
    assert options.highlighted is not None
    return options.get_option_at_index(options.highlighted).id
