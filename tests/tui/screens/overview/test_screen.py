"""The overview: its charts, and the cursor that moves the moment on display."""

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.overview_charts import Charts
from seqtop.tui.screens.overview.screen import OverviewScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.piloting import notices, play, screen
from tests.support.questions import question_run
from tests.support.scripted import Script, ScriptedSource, scene
from tests.support.simulated_engine import START

KEY = "6"


def an_app() -> SeqtopApp:
    return SeqtopApp(question_run()[0], clock=lambda: 0.0)


def line_of(app: SeqtopApp, title: str) -> str:
    return next(line for line in screen(app).splitlines() if line.startswith(f" {title}"))


def test_one_key_shows_charts_of_everything_on_one_axis() -> None:
    app = an_app()

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)
        for title in ("Decode", "Prefill", "Running", "Waiting", "KV blocks", "Preempted", "Time"):
            assert line_of(app, title)
        text = screen(app)
        assert "scheduler 1.2%" in text
        assert "forward 76%" in text
        assert "22:13:2" in text, "a time of day"
        assert "to 64" in text, "the blocks of the pool"

    play(app, act, (100, 24))


def test_the_cursor_moves_the_moment_on_every_screen() -> None:
    app = an_app()

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        newest = app.ui.state.time
        await pilot.press("left", "left")
        await pilot.pause()
        assert app.ui.paused
        earlier = app.ui.state.time
        assert earlier < newest
        assert "│" in line_of(app, "Decode")
        assert "▲" in screen(app)
        await pilot.press("right")
        await pilot.pause()
        assert earlier < app.ui.state.time < newest
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert earlier < app.ui.state.time < newest
        await pilot.press(KEY, *["right"] * 200)
        await pilot.pause()
        assert app.ui.state.time == newest
        assert "There is no other moment in the history this way." in screen(app)

    play(app, act, (100, 40))


def test_a_click_and_a_drag_choose_a_moment() -> None:
    app = an_app()

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await pilot.pause()
        await pilot.mouse_down("#overview", offset=(40, 3))
        await pilot.mouse_up("#overview", offset=(40, 3))
        await pilot.pause()
        first = app.ui.state.time
        assert app.ui.paused
        assert START < first < START + 8
        await pilot.mouse_down("#overview", offset=(60, 3))
        await pilot.hover("#overview", offset=(30, 3))
        await pilot.mouse_up("#overview", offset=(30, 3))
        await pilot.pause()
        assert app.ui.state.time < first
        await pilot.click("#overview", offset=(2, 3))  # a title is no moment
        await pilot.pause()

    play(app, act, (120, 30))


def test_zooming_and_panning() -> None:
    app = an_app()

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await pilot.pause()
        charts = app.screen.query_one(Charts)
        whole = charts.window
        assert whole.start <= START < charts.extent.last <= whole.end
        await pilot.press("plus")
        await pilot.pause()
        assert charts.window.cell < whole.cell
        await pilot.press("minus", "minus")
        await pilot.pause()
        assert charts.window.cell > whole.cell
        before = charts.window.start
        await pilot.press("h")
        await pilot.pause()
        assert charts.window.start < before
        await pilot.press("l", "equals_sign", "f")
        await pilot.pause()
        assert charts.window.end >= app.ui.state.time
        await pilot.press("a")
        await pilot.pause()
        assert charts.window == whole

    play(app, act, (100, 30))


def test_a_running_engine_draws_on() -> None:
    source = ScriptedSource()
    script = Script(source)
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await pilot.pause()
        assert "No steps yet: the charts begin with the first one." in screen(app)
        script.arrive("one")
        script.step(prefill={"one": 40})
        for _ in range(30):
            script.step()
        app.draw()
        await pilot.pause()
        assert "20.0 tok/s" in screen(app)
        assert line_of(app, "Preempted").split()[1] == "0"
        script.arrive("two")
        script.step(prefill={"two": 40}, preempt={"one": "two"})
        app.draw()
        await pilot.pause()
        assert "↺" in line_of(app, "Preempted")

    play(app, act, (100, 24))


def test_tall_terminals_have_charts_above_the_table() -> None:
    app = an_app()

    async def act(pilot: Pilot[int]) -> None:
        assert "KV blocks" in screen(app)
        await pilot.click("#strip", offset=(60, 1))
        await pilot.pause()
        assert app.ui.paused

    play(app, act, (160, 50))


def test_every_size_is_drawn() -> None:
    source = ScriptedSource()
    scene(source, hostile="?")
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        for size in ((20, 5), (40, 10), (80, 24), (200, 60), (1, 1), (120, 16)):
            await pilot.resize_terminal(*size)
            await pilot.press("left")
            await pilot.pause()
        assert not notices(app)

    play(app, act, (80, 24))
