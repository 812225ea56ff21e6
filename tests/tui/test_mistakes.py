"""What users get wrong, or meet, leaves a screen that can be read."""

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from seqtop.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.dialog import Dialog
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.piloting import burst, play, screen, until
from tests.support.scripted import ScriptedSource


def test_an_unknown_key_does_nothing(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        before = screen(app)
        await pilot.press("f9", "ctrl+y", "ü", "~")
        await pilot.pause()
        assert screen(app) == before

    play(app, act, (80, 24))


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
        await until(pilot, lambda: len(app.ui.view) == 4)

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
        assert len(app.ui.view) == 4
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


def test_an_engine_that_goes_while_one_looks(source: ScriptedSource) -> None:
    app = SeqtopApp(source, clock=lambda: 0.0)
    source.after_event = app.ui.update

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter", "l", "down", "slash", *"req")
        source.connect(ConnectionState.LOST)
        app.draw()
        await pilot.pause()
        assert "✗ LOST" in screen(app)
        await pilot.press("escape", "x", "n")
        assert isinstance(app.screen, SequencesScreen)
        assert "it is not connected" in screen(app)

    play(app, act, (80, 24))


def test_rates_of_a_lost_engine_are_dim(source: ScriptedSource, app: SeqtopApp) -> None:
    from seqtop.tui.chrome.header import throughput

    app.ui.rates = app.ui.rates._replace(steps=5.0, tokens_in=6.0, tokens_out=7.0)
    rates = ("5.0", "6.0", "7.0")
    inks = {text: ink for text, ink in throughput(app.ui, 200) if text in rates}
    assert set(inks.values()) == {"strong"}
    source.connection.state = ConnectionState.LOST
    inks = {text: ink for text, ink in throughput(app.ui, 200) if text in rates}
    assert (len(inks), set(inks.values())) == (3, {"dim"})


@pytest.mark.parametrize("size", [(40, 10), (80, 24)])
def test_the_way_out_is_always_shown(app: SeqtopApp, size: tuple[int, int]) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for width, height in (size, (120, 30), size):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            await pilot.pause()
            last = screen(app).splitlines()[-1]
            for key in ("q Quit", "? Help", "space Pause", "/ Filter"):
                assert key in last
            assert ("x Abort" in last) == (width > 40)

    play(app, act, size)


def test_the_help_is_legible_in_a_narrow_terminal(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: "2        Blocks" in screen(app))

    play(app, act, (40, 16))


@pytest.mark.parametrize("keys", ["b17", "sq", ":12", "c"])
def test_a_second_enter_finds_nobody_to_answer(app: SeqtopApp, keys: str) -> None:
    async def act(pilot: Pilot[int]) -> None:
        burst(app, keys)
        await until(pilot, lambda: isinstance(app.screen, Dialog) and app.focused is not None)
        await pilot.pause()
        burst(app, "\r")
        burst(app, "\r")
        await until(pilot, lambda: not isinstance(app.screen, Dialog))
        await pilot.pause()
        assert app.is_running

    play(app, act, (80, 24))


def test_help_says_that_it_goes_on(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert "↓ for more" in screen(app)
        await pilot.press("end")
        await pilot.pause()
        assert "↓ for more" not in screen(app)
        assert "Esc closes" in screen(app)

    play(app, act, (80, 24))
