"""The list of steps: its keys, what it says, and what it reads to say it."""

from seqtop.tui.app import SeqtopApp
from seqtop.wire import codec, parsing
from tests.support.piloting import play, screen
from tests.support.random_engine import RandomEngine
from tests.support.scripted import ScriptedSource, engine_info
from tests.support.steps_screen import opened, step_at


def test_enter_goes_there_and_the_arrows_take_the_cursor_along(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        rows = opened(app, pilot)
        pilot.press("up", "up", "up", "enter")
        assert app.ui.paused
        assert app.ui.state.step == 37 == step_at(app, rows.cursor)
        assert "▌▸     37" in screen(app)
        pilot.press("left", "left")
        assert app.ui.state.step == 35 == step_at(app, rows.cursor)
        pilot.press("down")
        assert app.ui.state.step == 35
        assert step_at(app, rows.cursor) == 36
        pilot.press("enter")
        assert app.ui.state.step == 36
        pilot.press("enter")
        assert "This step is on display." in screen(app)
        pilot.press("1")
        assert "step 36 " in screen(app).splitlines()[1]


def test_an_engine_without_steps() -> None:
    app = SeqtopApp(ScriptedSource(engine_info()), clock=lambda: 0.0)
    with play(app) as pilot:
        rows = opened(app, pilot)
        pilot.press("up", "enter", "G")
        assert rows.cursor is None
        assert "No steps yet." in screen(app)


def test_a_rich_stream_is_drawn() -> None:
    source = ScriptedSource()
    for event in RandomEngine(3, 30, num_blocks=24):
        source.apply(parsing.event(codec.encode(event)))
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (200, 50)) as pilot:
        rows = opened(app, pilot)
        pilot.press("g", *["down"] * 10)
        assert rows.cursor is not None
        assert screen(app).count("▌") == 1
