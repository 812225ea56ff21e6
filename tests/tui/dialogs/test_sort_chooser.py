"""The dialog that chooses the sort order."""

from typing import Any

from textual.widgets import OptionList

from seqtop.state.ordering import Sort
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.sort_chooser import SortChooser
from tests.support.piloting import play, screen, words


def test_sort_chooser(app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("s")
        assert isinstance(app.screen, SortChooser)
        pilot.press("escape")
        assert app.ui.view.sort == Sort()
        pilot.press("s")
        chooser: Any = app.screen
        options = chooser.query_one(OptionList)
        options.highlighted = options.get_option_index("out")
        pilot.press("enter")
        assert app.ui.view.sort == Sort("out", descending=True)
        outs = [len(app.ui.state.sequences[i].output_token_ids) for i in app.ui.view.page(0, 99)]
        assert outs == sorted(outs, reverse=True)
        assert "▼Out" in screen(app)
        pilot.press("s")
        assert highlighted(app) == "out"
        pilot.press("home", "enter")
        assert app.ui.view.sort == Sort()


def test_a_column_that_was_hidden(app: SeqtopApp) -> None:
    with play(app) as pilot:
        assert "E2E" not in screen(app)
        pilot.press("s", "e")
        assert highlighted(app) == "e2e"
        pilot.press("enter")
        assert "▼E2E" in screen(app)
        pilot.press("s", "end")
        assert "Prompt text the prompt's text" in words(app)
        pilot.press("home", "enter")
        assert "E2E" not in screen(app)


def test_a_letter_finds_the_most_important_column_first_and_again_the_next_one(
    app: SeqtopApp,
) -> None:
    with play(app) as pilot:
        pilot.press("s")
        found = []
        for letter in "pppphpteell":
            pilot.press(letter)
            found.append(highlighted(app))
        assert found[:5] == ["preempt", "prompt", "prio", "prompt_text", "harm"]
        assert found[5:] == ["preempt", "ttft", "e2e", "e2e", "lifecycle", "lost"]
        pilot.press("x")
        assert highlighted(app) == "lost"
        pilot.press("enter", "s", "l")
        assert highlighted(app) == "lifecycle"


def highlighted(app: SeqtopApp) -> str | None:
    options = app.screen.query_one(OptionList)
    assert options.highlighted is not None
    return options.get_option_at_index(options.highlighted).id
