"""Filtering and searching, and the errors that are shown while typing."""

from textual.pilot import Pilot
from textual.widgets import Input

from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.filter_bar import FilterBar
from seqtop.tui.screens.sequences.table import Rows
from tests.support.piloting import notices, play, screen, until


def test_filter(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        total = len(app.ui.view)
        await pilot.press("slash")
        assert isinstance(app.focused, Input)
        await pilot.press(*"status:wait")
        await pilot.pause()
        assert len(app.ui.view) == 5
        assert f"5 of {total}" in screen(app)
        await pilot.press("enter")
        assert isinstance(app.focused, Rows)
        assert len(app.ui.view) == 5
        assert "status:wait" in screen(app)
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.ui.view) == total
        assert not app.screen.query_one(FilterBar).display

    play(app, act)


def test_a_slip_in_the_filter_is_said_and_does_no_harm(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("slash")
        field = app.screen.query_one("#filter-input", Input)

        async def write(text: str) -> None:
            field.value = text
            await pilot.pause()

        await pilot.press(*"p>")
        assert "no field 'p': the help lists them all." in screen(app)
        await write("req-1 promt>5")
        assert "no field 'promt': perhaps prompt." in screen(app)
        await write("re:/req-1[0/")
        assert "regular expression is invalid" in screen(app)
        await pilot.press("enter")  # not while the table shows something else than what it says
        assert app.focused is field
        await write("re:/^req-(8|9)/")
        assert len(app.ui.view) == 2
        assert "broken" not in screen(app)
        await write("nowhere")
        await until(pilot, lambda: "No sequence matches the filter." in screen(app))
        await pilot.press("down")
        assert isinstance(app.focused, Rows)
        await pilot.press("down", "enter", "d", "G")  # nothing to move over
        await pilot.press("slash")
        await pilot.press("escape")
        assert "No sequence matches" not in screen(app)

    play(app, act)


def test_a_search_hides_nothing_and_is_gone_through(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        total = len(app.ui.view)

        def at() -> str:
            assert app.ui.selection is not None
            return app.ui.selection[0].request_id

        await pilot.press("m")
        assert notices(app)
        await pilot.press("backslash", *"done", "enter")
        await pilot.pause()
        assert len(app.ui.view) == total
        assert at() == "done-3"
        assert "1 of 4" in screen(app)
        await pilot.press("m", "m", "m")
        assert at() == "done-4"
        assert "4 of 4" in screen(app)
        await pilot.press("m")
        assert at() == "done-3"
        await pilot.press("M")
        assert at() == "done-4"
        await pilot.press("g")
        await pilot.pause()
        assert "0 of 4" in screen(app)
        await pilot.press("escape")
        assert "of 4" not in screen(app)
        await pilot.press("backslash", *"promt>1")
        assert "no field 'promt': perhaps prompt." in screen(app)
        await pilot.press("escape")

    play(app, act, (100, 30))


def test_a_value_that_cannot_be_is_named(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        total = len(app.ui.view)
        await pilot.press("slash")
        field = app.screen.query_one("#filter-input", Input)
        for text, said in (
            ("status:waitng", "no status 'waitng': perhaps waiting."),
            ("stage=prefll", "no stage 'prefll': perhaps prefill."),
            ("-status:zzz", "no status 'zzz': there are running, swapped, preempt,"),
        ):
            field.value = text
            await until(pilot, lambda said=said: said in screen(app))  # type: ignore[misc]
            assert len(app.ui.view) == total
        field.value = "status:wait"
        await until(pilot, lambda: len(app.ui.view) == 5)

    play(app, act, (80, 24))


def test_a_broken_filter_says_what_is_in_force_and_why_enter_stays(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        def words() -> str:
            return " ".join(screen(app).split())

        await pilot.press("slash", *"status:waitng")
        broken = (
            "no status 'waitng': perhaps waiting. Not applied; the active filter is status:wait."
        )
        assert broken in words()
        assert len(app.ui.view) == 5
        await pilot.press("enter")
        assert f"{broken} Correct it, or press Esc to clear it." in words()
        await pilot.press("backspace", "backspace", *"ing", "enter")
        assert "Not applied" not in words()
        assert not isinstance(app.focused, Input)
        await pilot.press("escape", "slash", *"status=wait")
        assert (
            "no status 'wait': perhaps waiting. Not applied; the active filter is status."
            in words()
        )

    play(app, act, (80, 24))


def test_a_selection_that_the_filter_hides_is_named_and_comes_back(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("down", "down")
        chosen = app.ui.selected
        assert chosen is not None
        found = app.ui.sequence(chosen)
        assert found is not None
        await pilot.press("slash", *"status:wait", "enter")
        await pilot.pause()
        assert app.ui.selected != chosen
        assert f"{found[0].request_id} is hidden" in screen(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.ui.selected == chosen
        await pilot.press("slash", *"status:wait", "enter", "down")
        other = app.ui.selected
        assert other is not None
        await pilot.pause()
        assert "is hidden" not in screen(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.ui.selected == other

    play(app, act)
