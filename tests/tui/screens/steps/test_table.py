"""The list of steps follows the newest step, and marks the step that is shown."""

import pytest
from textual.pilot import Pilot

from seqtop.history.playback import Playback
from seqtop.state import EngineState
from seqtop.tui.app import SeqtopApp
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, engine_info
from tests.support.steps_screen import opened, recorded, step_at

MORE = pytest.mark.release("more of the same kind")


def test_the_newest_step_is_in_sight_and_under_the_cursor(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        assert rows.num_rows == 41
        assert step_at(app, rows.cursor) == 40
        text = screen(app)
        assert "no free blocks: 3 missing" in text
        assert "req-9 waits: max_num_seqs (8) sequences are running." in text

    play(app, act, (100, 40))


def test_moving_leaves_the_end_and_coming_back_follows_it_again() -> None:
    source = recorded()
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        await pilot.press("up", "k")
        assert step_at(app, rows.cursor) == 38
        await pilot.press("g")
        assert step_at(app, rows.cursor) == 0
        await pilot.press("pagedown")
        assert step_at(app, rows.cursor) == rows.size.height - 1
        await pilot.press("G")
        assert step_at(app, rows.cursor) == 40
        assert rows.cursor_row == rows.num_rows - 1

    play(app, act, (100, 30))


def test_new_steps_come_into_sight_only_for_who_follows() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)

        async def on(count: int) -> None:
            for _ in range(count):
                script.step()
            app.draw()
            await pilot.pause()

        await on(60)
        assert step_at(app, rows.cursor) == 60
        assert rows.scroll_offset.y + rows.size.height == rows.num_rows
        await pilot.press("up")
        top = rows.scroll_offset.y
        await on(10)
        assert step_at(app, rows.cursor) == 59
        assert rows.scroll_offset.y == top
        await pilot.press("end")
        await on(10)
        assert step_at(app, rows.cursor) == 80

    play(app, act, (100, 30))


@pytest.mark.parametrize("width", [60, *(pytest.param(width, marks=MORE) for width in (100, 160))])
def test_the_first_step_of_an_engine_started_anew_says_so(width: int) -> None:
    source = recorded()
    source.replace(EngineState(info=engine_info(incarnation="b2")))
    script = Script(source, incarnation="b2")
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    script.step()
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        listed = [line for line in screen(app).splitlines() if "engine restarted;" in line]
        assert [line.split()[0] for line in listed] == ["0"]
        assert step_at(app, rows.cursor) == 1
        sentence = "The engine was restarted before this step"
        assert sentence not in screen(app)
        await pilot.press("up")
        await pilot.pause()
        assert sentence in screen(app)
        await pilot.press("up")
        await pilot.pause()
        assert step_at(app, rows.cursor) == 40
        assert sentence not in screen(app)

    play(app, act, (width, 40))


def test_a_recording_is_listed_whole_with_the_moment_on_show_marked() -> None:
    history = recorded().history
    app = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        assert rows.num_rows == 41
        await pilot.press("right_curly_bracket", "right")
        await pilot.pause()
        assert step_at(app, rows.cursor) == app.ui.state.step == 10
        assert "▌▸     10" in screen(app)

    play(app, act, (100, 30))
