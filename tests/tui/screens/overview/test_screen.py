"""The overview: its charts, and the cursor that moves the moment on display."""

import msgspec

from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.overview_charts import ALL_CHARTS, Charts
from seqtop.tui.screens.overview.screen import OverviewScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.wire.messages import CudaGraph
from tests.support.piloting import notices, play, rows, screen, until, words
from tests.support.questions import question_run
from tests.support.scripted import Script, ScriptedSource, scene
from tests.support.simulated_engine import START

KEY = "6"


def an_app() -> SeqtopApp:
    return SeqtopApp(question_run()[0], clock=lambda: 0.0)


def line_of(app: SeqtopApp, title: str) -> str:
    return next(line for line in rows(app) if line.startswith(f" {title}"))


def test_one_key_shows_charts_of_everything_on_one_axis() -> None:
    app = an_app()
    with play(app, (100, 34)) as pilot:
        pilot.press(KEY)
        assert isinstance(app.screen, OverviewScreen)
        for title in ("Output", "Prefill", "Running", "Waiting", "KV blocks", "Preempted", "Time"):
            assert line_of(app, title)
        text = screen(app)
        assert "scheduler 1.2%" in text
        assert "forward 76%" in text
        assert "22:13:2" in text, "a time of day"
        assert "to 64" in text, "the blocks of the pool"


def test_the_output_of_the_last_second_is_that_of_the_header() -> None:
    source = ScriptedSource()
    script = Script(source)
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 40)) as pilot:
        pilot.press(KEY)
        for number in range(12):  # each with a token that no decode step generates
            script.arrive(f"req-{number}")
            script.step(prefill={f"req-{number}": 40})
            for _ in range(3):
                script.step()
        pilot.draw()
        header = words(app).split("in/out ")[1].split(" tok/s")[0]
        below = rows(app)[rows(app).index(line_of(app, "Output")) + 1]
        assert below.split()[0] == header.split("/")[1]


def test_the_cursor_moves_the_moment_on_every_screen() -> None:
    app = an_app()
    with play(app, (100, 40)) as pilot:
        pilot.press(KEY)
        newest = app.ui.state.time
        pilot.press("left", "left")
        assert app.ui.paused
        earlier = app.ui.state.time
        assert earlier < newest
        assert "│" in line_of(app, "Output")
        assert "▲" in screen(app)
        pilot.press("right")
        assert earlier < app.ui.state.time < newest
        pilot.press("enter")
        assert isinstance(app.screen, SequencesScreen)
        assert earlier < app.ui.state.time < newest
        pilot.press(KEY)
        for _ in range(200):
            if app.ui.state.time == newest:
                break
            pilot.press("right")
        pilot.press("right")
        assert app.ui.state.time == newest
        assert "This is the newest moment so far." in screen(app)


def test_a_click_and_a_drag_choose_a_moment() -> None:
    app = an_app()
    with play(app, (120, 30)) as pilot:
        pilot.press(KEY)
        pilot.mouse_down("#overview", offset=(40, 3))
        pilot.mouse_up("#overview", offset=(40, 3))
        first = app.ui.state.time
        assert app.ui.paused
        assert START < first < START + 8
        pilot.mouse_down("#overview", offset=(60, 3))
        pilot.hover("#overview", offset=(30, 3))
        pilot.mouse_up("#overview", offset=(30, 3))
        assert app.ui.state.time < first
        pilot.click("#overview", offset=(2, 3))  # a title is no moment


def test_zooming_and_panning() -> None:
    app = an_app()
    with play(app, (100, 30)) as pilot:
        pilot.press(KEY)
        charts = app.screen.query_one(Charts)
        whole = charts.window
        assert whole.start <= START < charts.extent.last <= whole.end
        pilot.press("plus")
        assert charts.window.cell < whole.cell
        pilot.press("minus", "minus")
        assert charts.window.cell > whole.cell
        before = charts.window.start
        pilot.press("h")
        assert charts.window.start < before
        pilot.press("l", "equals_sign", "f")
        assert charts.window.end >= app.ui.state.time
        pilot.press("a")
        assert charts.window == whole


def test_a_running_engine_draws_on() -> None:
    source = ScriptedSource()
    script = Script(source)
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 24)) as pilot:
        pilot.press(KEY)
        (hint,) = (line for line in rows(app) if "No steps yet: the charts begin" in line)
        assert hint.index("No") == (len(hint) - len(hint.strip())) // 2, "as on other screens"
        script.arrive("one")
        script.step(prefill={"one": 40})
        for _ in range(30):
            script.step()
        pilot.draw()
        assert "20.0 tok/s" in screen(app)
        assert line_of(app, "Preempted").split()[1] == "0"
        script.arrive("two")
        script.step(prefill={"two": 40}, preempt={"one": "two"})
        pilot.draw()
        assert line_of(app, "Preempted").count("↺") == 1


def test_the_cursor_does_not_hide_the_preemption_that_it_is_at() -> None:
    source = ScriptedSource()
    script = Script(source)
    for name in ("one", "two", "three"):
        script.arrive(name)
        script.step(prefill={name: 40})
    script.step(preempt={"one": "two"})
    for _ in range(20):
        script.step()
    script.step(preempt={"three": "two"})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 30)) as pilot:
        pilot.press("p", "left", KEY)
        assert line_of(app, "Preempted").count("↺") == 2
        pilot.press("right")
        assert line_of(app, "Preempted").count("↺") == 2


def test_tall_terminals_have_charts_above_the_table() -> None:
    app = an_app()
    with play(app, (160, 50)) as pilot:
        assert "KV blocks" in screen(app)
        pilot.click("#strip", offset=(60, 1))
        assert app.ui.paused


def test_every_size_is_drawn() -> None:
    source = ScriptedSource()
    scene(source, hostile="?")
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (80, 24)) as pilot:
        pilot.press(KEY)
        for size in ((20, 5), (40, 10), (80, 24), (200, 60), (1, 1), (120, 16)):
            pilot.resize_terminal(*size)
            pilot.press("left")
        assert not notices(app)


def test_the_charts_of_what_limits_the_engine_are_larger() -> None:
    app = an_app()
    with play(app, (120, 40)) as pilot:
        pilot.press(KEY)
        charts = app.screen.query_one(Charts)
        verdict = app.ui.verdict
        for cause, title in (("no_blocks", "KV blocks"), ("seq_limit", "Running")):
            at = next(index for index, it in enumerate(ALL_CHARTS) if it.title == title)
            verdict.cause = None
            usual = charts._heights(30)[at]
            verdict.cause = cause
            assert charts._heights(30)[at] > usual


def test_keys_lead_to_a_drop_with_its_step_and_cause() -> None:
    app = an_app()
    with play(app, (120, 30)) as pilot:
        pilot.press("left_square_bracket")
        assert "Output rose from" in words(app), "on any screen"
        pilot.press("left_square_bracket", KEY)
        assert app.ui.paused
        text = words(app)
        assert "step 60: Output fell from 40.0 to 20.0 tok/s: 1.0 tokens a step, 2.0 before" in text
        pilot.resize_terminal(80, 24)
        until(pilot, lambda: "(no free blocks; early held 8 blocks)" in words(app))
        pilot.resize_terminal(40, 30)
        until(pilot, lambda: " …" in screen(app))
        pilot.resize_terminal(120, 30)
        pilot.press("right_square_bracket")
        assert app.ui.state.step > 60
        pilot.press(*["left_square_bracket"] * 9)
        assert "No drop or spike of the output before this moment." in screen(app)


def test_figures_that_only_some_engines_have_are_on_the_overview() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("one")
    script.step(prefill={"one": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 40)) as pilot:
        pilot.press(KEY)
        assert "CUDA graph" not in words(app)
        state = source.state
        assert state.stats is not None
        state.num_drafted, state.num_accepted = [10, 10], [8, 4]
        state.num_parked = {"WAITING_FOR_REMOTE_KVS": 2}
        state.stats = msgspec.structs.replace(
            state.stats, cuda_graph=CudaGraph("FULL", 12, 16), num_late_blocks=3
        )
        app.draw(redraw=True)
        until(pilot, lambda: "2 WAITING_FOR_REMOTE_KVS" in words(app))
        text = words(app)
        assert "drafts 60% of 20 accepted, 80% of first ones" in text
        assert "CUDA graph FULL +4 tokens of padding 3 blocks of ended requests" in text
