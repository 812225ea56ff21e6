"""Filtering and searching, and the errors that are shown while typing."""

from collections.abc import Awaitable, Callable

import pytest
from textual.app import ComposeResult
from textual.widgets import Input, OptionList

from seqtop.state.filter import parse
from seqtop.tui.app import SeqtopApp
from seqtop.tui.base_app import BaseApp
from seqtop.tui.chrome.filter_bar import FilterBar
from seqtop.tui.screens.sequences.table import Rows
from tests.support.piloting import Pilot, notices, play, screen, until


def test_filter(app: SeqtopApp) -> None:
    with play(app) as pilot:
        total = len(app.ui.view)
        pilot.press("slash")
        assert isinstance(app.focused, Input)
        pilot.press(*"status:wait")
        assert len(app.ui.view) == 5
        assert f"5 of {total}" in screen(app)
        pilot.press("enter")
        assert isinstance(app.focused, Rows)
        assert len(app.ui.view) == 5
        assert "status:wait" in screen(app)
        pilot.press("escape")
        assert len(app.ui.view) == total
        assert not app.screen.query_one(FilterBar).display


def test_a_slip_in_the_filter_is_said_and_does_no_harm(app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("slash")
        field = app.screen.query_one("#filter-input", Input)

        def write(text: str) -> None:
            field.value = text
            pilot.pause()

        pilot.press(*"p>")
        assert "no field 'p': the help lists them all." in screen(app)
        write("req-1 promt>5")
        assert "no field 'promt': perhaps prompt." in screen(app)
        write("re:/req-1[0/")
        assert "regular expression is invalid" in screen(app)
        pilot.press("enter")  # not while the table shows something else than what it says
        assert app.focused is field
        write("re:/^req-(8|9)/")
        assert len(app.ui.view) == 2
        assert "broken" not in screen(app)
        write("nowhere")
        until(pilot, lambda: "No sequence matches nowhere" in screen(app))
        pilot.press("down")
        assert isinstance(app.focused, Rows)
        pilot.press("down", "enter", "d", "end")  # nothing to move over
        pilot.press("slash")
        pilot.press("escape")
        assert "No sequence matches" not in screen(app)


def test_a_search_hides_nothing_and_is_gone_through(app: SeqtopApp) -> None:
    with play(app, (100, 30)) as pilot:
        total = len(app.ui.view)

        def at() -> str:
            assert app.ui.selection is not None
            return app.ui.selection[0].request_id

        pilot.press("m")
        assert notices(app)
        pilot.press("backslash", *"done", "enter")
        assert len(app.ui.view) == total
        assert at() == "done-3"
        assert "1 of 4" in screen(app)
        pilot.press("m", "m", "m")
        assert at() == "done-4"
        assert "4 of 4" in screen(app)
        pilot.press("m")
        assert at() == "done-3"
        pilot.press("M")
        assert at() == "done-4"
        pilot.press("g")
        assert "0 of 4" in screen(app)
        pilot.press("escape")
        assert "of 4" not in screen(app)
        pilot.press("backslash", *"promt>1")
        assert "no field 'promt': perhaps prompt." in screen(app)
        pilot.press("escape")


def test_a_value_that_cannot_be_is_named(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        total = len(app.ui.view)
        pilot.press("slash")
        field = app.screen.query_one("#filter-input", Input)
        for text, said in (
            ("status:waitng", "no status 'waitng': perhaps waiting."),
            ("stage=prefll", "no stage 'prefll': perhaps prefill."),
            ("-status:zzz", "no status 'zzz': there are running, swapped, preempt,"),
        ):
            field.value = text
            until(pilot, lambda said=said: said in screen(app))  # type: ignore[misc]
            assert len(app.ui.view) == total
        field.value = "status:wait"
        until(pilot, lambda: len(app.ui.view) == 5)


def test_a_broken_filter_says_what_is_in_force_and_why_enter_stays(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:

        def words() -> str:
            return " ".join(screen(app).split())

        pilot.press("slash", *"status:waitng")
        broken = "no status 'waitng': perhaps waiting. Not applied; the active filter is none."
        assert broken in words()
        assert len(app.ui.view) == 17
        pilot.press("enter")
        assert f"{broken} Correct it, or press Esc to clear it." in words()
        pilot.press("backspace", "backspace", *"ing", "enter")
        assert "Not applied" not in words()
        assert not isinstance(app.focused, Input)
        pilot.press("escape", "slash", *"status=wait")
        assert (
            "no status 'wait': perhaps waiting. Not applied; the active filter is none." in words()
        )


def test_a_selection_that_the_filter_hides_is_named_and_comes_back(app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("down", "down")
        chosen = app.ui.cursor.seq_id
        assert chosen is not None
        hidden = app.ui.sequence(chosen)
        pilot.press("slash", *"status:wait", "enter")
        assert app.ui.cursor.seq_id != chosen
        assert f"{hidden[0].request_id} is hidden" in screen(app)
        pilot.press("escape")
        assert app.ui.cursor.seq_id == chosen
        pilot.press("slash", *"status:wait", "enter", "down")
        other = app.ui.cursor.seq_id
        assert other is not None
        pilot.pause()
        assert "is hidden" not in screen(app)
        pilot.press("escape")
        assert app.ui.cursor.seq_id == other


class BarApp(BaseApp):
    """A bar above a list, and what the bar says of itself."""

    def __init__(self, name: str = "filter") -> None:
        super().__init__(theme_name=None, problems=())
        self.bar = FilterBar(parse, "text  out>9", name)
        self.list = OptionList("a", "b")
        self.said: list[str | None] = []
        """The filters that became active; `None` where the user left the line."""
        self.num_rings = 0

    def compose(self) -> ComposeResult:
        yield self.bar
        yield self.list

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        assert message.bar is self.bar
        self.said.append(message.source)

    def on_filter_bar_left(self) -> None:
        self.said.append(None)
        self.list.focus()

    def on_input_changed(self) -> None:
        self.said.append("an event of the line, which is the bar's own")

    on_input_submitted = on_input_changed

    def bell(self) -> None:
        self.num_rings += 1

    def words(self) -> str:
        return " ".join(screen(self).split())


def drive(act: Callable[[BarApp, Pilot], Awaitable[None]], name: str = "filter") -> None:
    app = BarApp(name)
    with play(app, (120, 12)) as pilot:
        assert not app.bar.display
        act(app, pilot)


def test_a_bar_says_what_is_active_and_when_it_is_left() -> None:
    def act(app: BarApp, pilot: Pilot) -> None:
        app.bar.open()
        pilot.pause()
        line = app.query_one("#filter-input", Input)
        assert app.focused is line
        assert "Filter text out>9" in app.words()
        assert app.bar.size.height == 1
        pilot.press(*" ou", "space")
        assert app.said == ["", "o", "ou", "ou"]
        app.said.clear()
        line.value = "out>"
        pilot.pause()
        assert app.bar.has_class("-wrong")
        assert "out> needs a value. Not applied; the active filter is none." in app.words()
        pilot.press("down")
        assert (app.said, app.num_rings, app.focused) == ([""], 1, line)
        assert "the active filter is none. Correct it, or press Esc to clear it." in app.words()
        pilot.press("1", "enter")
        assert (app.said, app.num_rings) == (["", "out>1", None], 1)
        app.bar.open()
        line.value = "out>1 in"
        pilot.pause()
        line.value = "out>1 in>"
        pilot.pause()
        assert "the active filter is out>1." in app.words()
        assert app.said[3:] == ["out>1 in", "out>1"]
        line.value = "out>1"
        pilot.press("enter")
        assert not app.bar.has_class("-wrong")
        assert "Not applied" not in app.words()
        assert app.focused is app.list
        assert app.bar.display

    drive(act)


@pytest.mark.parametrize("key", ["enter", "down", "escape"])
def test_a_bar_that_is_left_empty_is_closed(key: str) -> None:
    def act(app: BarApp, pilot: Pilot) -> None:
        app.bar.open()
        pilot.press("space", "x" if key == "escape" else "space", key)
        assert None in app.said
        assert not app.bar.display
        assert app.focused is app.list
        line = app.query_one("#search-input", Input)
        assert not line.can_focus
        app.bar.open()
        assert line.can_focus
        pilot.pause()
        assert "Search" in app.words()
        assert line.value == ("" if key == "escape" else "  ")

    drive(act, "search")


def test_the_filter_is_cleared_and_said_to_be() -> None:
    def act(app: BarApp, pilot: Pilot) -> None:
        app.bar.open()
        pilot.press("escape")
        assert app.said == ["", None]
        app.bar.open()
        pilot.press("x", "enter")
        app.said.clear()
        app.bar.clear()
        pilot.pause()
        assert set(app.said) == {"", None}
        app.bar.open()
        pilot.press(*"out>")
        assert "the active filter is none." in app.words()
        app.bar.clear()
        app.bar.open()
        pilot.pause()
        assert "Not applied" not in app.words()
        app.query_one(Input).value = "fox\x1b[2J"
        pilot.press("enter")
        app.bar.open()
        app.query_one(Input).value = "fox out>"
        pilot.pause()
        assert "the active filter is fox" in app.words()
        assert "\x1b" not in screen(app)

    drive(act)


def test_a_filter_that_was_not_typed_is_shown() -> None:
    def act(app: BarApp, pilot: Pilot) -> None:
        app.bar.fill("fox")
        pilot.pause()
        assert app.bar.display
        assert app.focused is not app.query_one(Input)
        assert not app.query_one(Input).can_focus
        assert "Filter fox" in app.words()
        app.query_one(Input).value = "fox out>"
        pilot.pause()
        assert "the active filter is fox." in app.words()
        app.bar.fill("")
        pilot.pause()
        assert not app.bar.display

    drive(act)


def test_the_count_of_matches_names_what_is_hidden() -> None:
    def act(app: BarApp, pilot: Pilot) -> None:
        app.bar.show_count(1, 2)
        app.bar.open()
        pilot.pause()
        assert "1 of 2" not in app.words(), "it was not shown then"
        app.bar.show_count(1_200, 34_567)
        pilot.pause()
        assert "1,200 of 34,567" in app.words()
        assert "is hidden" not in app.words()
        app.bar.show_count(3, 4, "[b]req\x1b-7")
        pilot.pause()
        assert "-7 is hidden 3 of 4" in app.words()
        assert "[b]req" in app.words()
        assert "\x1b" not in screen(app)

    drive(act)


def test_the_first_filter_may_be_pasted_and_wrong() -> None:
    def act(app: BarApp, pilot: Pilot) -> None:
        app.bar.open()
        app.query_one(Input).insert_text_at_cursor("zzz:1")
        pilot.pause()
        assert "Not applied; the active filter is none." in app.words()
        assert app.said == []

    drive(act)
