"""The list of steps: its keys, what it says, and what it reads to say it."""

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.wire import codec, parsing
from tests.support.piloting import play, screen
from tests.support.random_engine import RandomEngine
from tests.support.scripted import ScriptedSource, engine_info
from tests.support.steps_screen import opened, step_at


def test_enter_goes_there_and_the_arrows_take_the_cursor_along(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        await pilot.press("up", "up", "up", "enter")
        await pilot.pause()
        assert app.ui.paused
        assert app.ui.state.step == 37 == step_at(app, rows.cursor)
        assert "▌▸     37" in screen(app)
        await pilot.press("left", "left")
        await pilot.pause()
        assert app.ui.state.step == 35 == step_at(app, rows.cursor)
        await pilot.press("down")
        await pilot.pause()
        assert app.ui.state.step == 35
        assert step_at(app, rows.cursor) == 36
        await pilot.press("enter")
        await pilot.pause()
        assert app.ui.state.step == 36
        await pilot.press("enter")
        await pilot.pause()
        assert "This step is on display." in screen(app)
        await pilot.press("1")
        await pilot.pause()
        assert "step 36 " in screen(app).splitlines()[1]

    play(app, act, (100, 40))


def test_an_engine_without_steps() -> None:
    app = SeqtopApp(ScriptedSource(engine_info()), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        await pilot.press("up", "enter", "G")
        assert rows.cursor is None
        assert "No steps yet." in screen(app)

    play(app, act)


def test_a_rich_stream_is_drawn() -> None:
    source = ScriptedSource()
    for event in RandomEngine(3, 30, num_blocks=24):
        source.apply(parsing.event(codec.encode(event)))
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        await pilot.press("g", *["down"] * 10)
        assert rows.cursor is not None
        assert screen(app).count("▌") == 1

    play(app, act, (200, 50))
