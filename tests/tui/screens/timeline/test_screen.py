"""The timeline of all requests: its keys, and what it draws and looks at."""

from collections import Counter

import pytest
from textual.pilot import Pilot

from seqtop import format as fmt
from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.state import Span
from seqtop.state.filter import parse
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.timeline.rows import TimeAxis, TimelineRows
from seqtop.tui.screens.timeline.screen import TimelineScreen
from tests.support.piloting import SCREENS, play, screen
from tests.support.scripted import STEP_TIME, Script, ScriptedSource, scene

MANY = 10_000


@pytest.fixture
def app() -> SeqtopApp:
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile="?")
    return SeqtopApp(source, clock=lambda: 0.0)


async def opened(app: SeqtopApp, pilot: Pilot[int]) -> TimelineRows:
    await pilot.press(str(SCREENS.index(TimelineScreen) + 1))
    await pilot.pause()
    assert isinstance(app.screen, TimelineScreen)
    return app.screen.query_one(TimelineRows)


def line_of(app: SeqtopApp, name: str) -> str:
    return next(line for line in screen(app).splitlines() if name in line)


def selected(app: SeqtopApp) -> str:
    assert app.ui.selection is not None
    return app.ui.selection[0].request_id


def test_rows_are_those_of_the_table_and_the_selection_carries_over(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("down", "down")
        rows = await opened(app, pilot)
        assert selected(app) == "req-3"
        assert rows.page(0, 100) == app.ui.view.page(0, 100)
        assert "░█" in line_of(app, "req-2")
        assert "↺▒" in line_of(app, "req-7")
        assert "━✓" in line_of(app, "done-1")
        await pilot.press("j", "j", "k", "enter")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert selected(app) == "req-4"

    play(app, act, (100, 40))


def test_order_and_filter(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        await pilot.press("s")
        await pilot.pause()
        state = app.ui.state
        by_arrival = [key for request in state.requests.values() for key in request.seq_ids]
        assert rows.page(0, 100) == by_arrival
        with app.ui.lock:
            app.ui.filter_by(parse("status:waiting"))
        app.screen.show_all()
        assert {state.sequences[key].request_id for key in rows.page(0, 100)} == {
            "req-8", "req-9", "req-10", "chat-b7f39a2c-11",
        }  # fmt: skip
        await pilot.press("s")
        assert rows.page(0, 100) == app.ui.view.page(0, 100)

    play(app, act, (100, 40))


def test_zoom_pan_fit_and_follow(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        whole = rows.window
        assert whole.column(app.ui.state.time) is not None
        await pilot.press("plus")
        closer = rows.window
        assert closer.cell < whole.cell
        assert closer.column(app.ui.state.time) is not None
        await pilot.press("h")
        earlier = rows.window
        assert earlier.start == pytest.approx(closer.start - 0.25 * closer.width * closer.cell, 1)
        await pilot.press("l")
        assert rows.window.start == pytest.approx(closer.start, abs=closer.cell)
        await pilot.press("h", "h", "h", "f")
        assert rows.window.column(app.ui.state.time) is not None
        await pilot.press("minus", "minus")
        assert rows.window.cell > whole.cell
        await pilot.press("a")
        assert rows.window == whole

    play(app, act, (100, 40))


def test_the_moment_on_show_is_marked_and_kept_in_sight(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        assert rows.position_column is None
        await pilot.press("left", "left")
        await pilot.pause()
        assert rows.position_column is not None
        assert "▼" in screen(app)
        assert line_of(app, "req-1")[rows.layout_columns.name + 4 + rows.position_column] == "│"
        await pilot.press(*["plus", "equals_sign"] * 2, "0")
        await pilot.pause()
        assert "No sequence had arrived yet at this moment." in screen(app)
        await pilot.press("right_curly_bracket")
        await pilot.pause()
        assert rows.position_column is not None
        assert "╷" in screen(app)

    play(app, act, (100, 40))


@pytest.mark.parametrize("keys", ["p", "space", "0", "0 right right"])
@pytest.mark.parametrize("replayed", [False, True], ids=["live", "replayed"])
def test_opened_while_held_it_has_the_scale_it_has_when_live(
    app: SeqtopApp, keys: str, replayed: bool
) -> None:
    history = app.ui.source.history
    assert history is not None
    scales: list[float] = []

    async def look(pilot: Pilot[int], *held: str) -> None:
        await pilot.press(*held)
        rows = await opened(pilot.app, pilot)
        scales.append(rows.window.cell)
        assert rows.position_column is not None or not held
        assert f"{fmt.seconds(rows.window.cell)}/cell" in screen(pilot.app)

    async def live(pilot: Pilot[int]) -> None:
        await look(pilot)

    async def held(pilot: Pilot[int]) -> None:
        if replayed:
            await pilot.press("L")
        await look(pilot, *keys.split())

    play(app, live, (100, 40))
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile="?")
    if replayed:
        other = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)
    else:
        other = SeqtopApp(source, clock=lambda: 0.0)
    play(other, held, (100, 40))
    assert scales[0] == scales[1] < 1


def test_to_the_preemptions_of_the_selected_request(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await opened(app, pilot)
        await pilot.press("o")
        await pilot.pause()
        told = [notice.message for notice in app._notifications]
        assert told == ["No preemption of req-1 before this moment in the history."]
        await pilot.press(*["down"] * 8)
        assert selected(app) == "req-7"
        await pilot.press("o")
        await pilot.pause()
        assert app.ui.state.step == 34
        assert "Preempted here: req-7 (79 tokens lost)." in " ".join(screen(app).split())
        await pilot.press("left", "O")
        await pilot.pause()
        assert app.ui.state.step == 34
        assert selected(app) == "req-7"

    play(app, act, (100, 40))


def test_a_recording_has_the_scale_of_its_whole(app: SeqtopApp) -> None:
    history = app.ui.source.history
    assert history is not None
    replayed = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("right")
        rows = await opened(replayed, pilot)
        scale = rows.window
        await pilot.press("right_curly_bracket", "right")
        await pilot.pause()
        assert rows.window == scale
        assert rows.position_column is not None

    play(replayed, act, (100, 40))


def test_drawing_costs_what_is_in_sight(lines: Counter[LineView]) -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    for index in range(MANY):
        script.arrive(f"waits-{index}")
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        axis = app.screen.query_one(TimeAxis)

        async def cost(*keys: str) -> int:
            before = lines[rows]
            await pilot.press(*keys)
            app.draw()
            await pilot.pause()
            await pilot.pause()
            return lines[rows] - before

        assert await cost() == 0
        assert await cost("down") == 2
        assert await cost("plus") <= 2 * rows.size.height
        assert await cost("G") <= 2 * rows.size.height
        await cost("g", "a")
        script.time = source.state.time - 2 * STEP_TIME  # so that no clock ticks
        drawn = lines[axis]
        script.step()
        assert await cost() <= 1
        assert lines[axis] == drawn

    play(app, act, (120, 30))


def test_a_request_with_very_many_spans_is_drawn_once_a_cell() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("long")
    script.step(prefill={"long": 40})
    request = source.state.requests["long"]
    begin = source.state.time
    request.spans += [
        Span("prefill" if at % 3 else "preempted", begin + at / 1e3, begin + (at + 1) / 1e3)
        for at in range(100_000)
    ]  # fmt: skip
    source.state.time = begin + 100
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await opened(app, pilot)
        assert "↺↺↺" in line_of(app, "long")  # every cell holds several
        await pilot.press(*["plus"] * 13)
        await pilot.pause()
        assert {"█", "↺"} <= set(line_of(app, "long"))

    play(app, act, (120, 30))
