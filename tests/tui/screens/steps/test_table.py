"""The list of steps follows the newest step, and marks the step that is shown."""

import pytest

from seqtop.live.playback import Playback
from seqtop.state import EngineState
from seqtop.tui.app import SeqtopApp
from tests.support.piloting import inside, play, screen
from tests.support.scripted import Script, ScriptedSource, engine_info
from tests.support.steps_screen import opened, recorded, step_at

MORE = pytest.mark.release("more of the same kind")


def test_the_newest_step_is_in_sight_and_under_the_cursor(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        rows = opened(app, pilot)
        assert rows.num_rows == 41
        assert step_at(app, rows.cursor) == 40
        text = screen(app)
        assert "no free blocks: 3 missing" in text
        assert "req-9 waits: max_num_seqs (8) sequences are running." in text


def test_columns_without_a_figure_are_left_out() -> None:
    script = Script(ScriptedSource())
    for name in ("one", "two"):
        script.arrive(name, num_prompt=8)
    script.step(prefill={"one": 8})
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    with play(app, (200, 40)) as pilot:
        pilot.press("4")
        titles = next(line for line in screen(app).splitlines() if "Limited by" in line)
        assert "Chunks" in titles
        assert "Swaps" not in titles
        assert "Copy" not in titles


def test_moving_leaves_the_end_and_coming_back_follows_it_again() -> None:
    source = recorded()
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 30)) as pilot:
        rows = opened(app, pilot)
        pilot.press("up", "k")
        assert step_at(app, rows.cursor) == 38
        pilot.press("g")
        assert step_at(app, rows.cursor) == 0
        pilot.press("pagedown")
        assert step_at(app, rows.cursor) == rows.size.height - 1
        pilot.press("G")
        assert step_at(app, rows.cursor) == 40
        assert rows.cursor_row == rows.num_rows - 1


def test_new_steps_come_into_sight_only_for_who_follows() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 30)) as pilot:
        rows = opened(app, pilot)

        def on(count: int) -> None:
            for _ in range(count):
                script.step()
            pilot.draw()

        on(60)
        assert step_at(app, rows.cursor) == 60
        assert rows.scroll_offset.y + rows.size.height == rows.num_rows
        pilot.press("up")
        top = rows.scroll_offset.y
        on(10)
        assert step_at(app, rows.cursor) == 59
        assert rows.scroll_offset.y == top
        pilot.press("end")
        on(10)
        assert step_at(app, rows.cursor) == 80


@pytest.mark.parametrize("width", [60, *(pytest.param(width, marks=MORE) for width in (100, 160))])
def test_the_first_step_of_an_engine_started_anew_says_so(width: int) -> None:
    source = recorded()
    source.replace(EngineState(info=engine_info(incarnation="b2")))
    script = Script(source, incarnation="b2")
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    script.step()
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (width, 40)) as pilot:
        rows = opened(app, pilot)
        lines = inside(screen(app).splitlines())
        listed = [line for line in lines if "engine restarted;" in line]
        assert [line.split()[0] for line in listed] == ["0"]
        assert step_at(app, rows.cursor) == 1
        sentence = "The engine was restarted before this step"
        assert sentence not in screen(app)
        pilot.press("up")
        assert sentence in screen(app)
        pilot.press("enter")
        assert app.ui.time_travel.position == rows.cursor, "not step 0 of the run before"
        pilot.press("up")
        assert step_at(app, rows.cursor) == 40
        assert sentence not in screen(app)


def test_a_recording_is_listed_whole_with_the_moment_on_show_marked() -> None:
    history = recorded().history
    app = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)
    with play(app, (100, 30)) as pilot:
        rows = opened(app, pilot)
        assert rows.num_rows == 41
        pilot.press("right_curly_bracket", "right")
        assert step_at(app, rows.cursor) == app.ui.state.step == 10
        assert "▌▸     10" in screen(app)
