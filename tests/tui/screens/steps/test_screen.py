"""The list of steps: its keys, what it says, and what it reads to say it."""

from collections import Counter
from collections.abc import Iterator

import pytest
from textual.pilot import Pilot

from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.history.timeline import CompressedData, RecordingError
from seqtop.state import EngineState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.steps import cells
from seqtop.tui.screens.steps.detail import Members, StepDetail
from seqtop.tui.screens.steps.screen import StepsScreen
from seqtop.tui.screens.steps.table import StepRows
from seqtop.wire import codec, parsing
from tests.support.event_script import EventScript
from tests.support.piloting import SCREENS, play, screen
from tests.support.scripted import Script, ScriptedSource, engine_info, scene

MANY = 10_000


def recorded() -> ScriptedSource:
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile="?")
    return source


@pytest.fixture
def app() -> SeqtopApp:
    return SeqtopApp(recorded(), clock=lambda: 0.0)


async def opened(app: SeqtopApp, pilot: Pilot[int]) -> StepRows:
    await pilot.press(str(SCREENS.index(StepsScreen) + 1))
    await pilot.pause()
    assert isinstance(app.screen, StepsScreen)
    return app.screen.query_one(StepRows)


def step_at(app: SeqtopApp, position: int | None) -> int:
    assert position is not None
    assert app.ui.source.history is not None
    return app.ui.source.history.index[position].step


def test_the_newest_step_is_in_sight_and_under_the_cursor(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        assert rows.num_rows == 41
        assert step_at(app, rows.cursor) == 40
        text = screen(app)
        assert "no free blocks: 3 missing" in text
        assert "req-9 waited for a place: all 8 were taken." in text

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
    source = ScriptedSource(history=MemoryStore())
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


def test_a_member_leads_to_its_sequence(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await opened(app, pilot)
        await pilot.press("p")
        await pilot.pause()
        assert "req-7 was preempted to make room for req-6; 79 computed tokens" in screen(app)
        await pilot.press("tab", "down", "down")
        member = app.screen.query_one(Members).chosen
        assert member is not None
        assert member.request_id == "req-2"
        await pilot.press("tab")
        assert app.screen.query_one(StepRows).has_focus
        await pilot.press("tab", "enter")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.paused
        assert app.ui.state.step == 34
        assert app.ui.selection is not None
        assert app.ui.selection[0].request_id == "req-2"

    play(app, act, (100, 40))


def test_the_detail_can_be_shown_and_hidden(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await opened(app, pilot)
        detail = app.screen.query_one(StepDetail)
        assert detail.display
        await pilot.press("tab", "d")
        assert not detail.display
        assert app.screen.query_one(StepRows).has_focus
        await pilot.press("d")
        await pilot.pause()
        assert detail.display
        assert "req-9 waited for a place" in screen(app)

    play(app, act, (100, 40))


@pytest.mark.parametrize("width", [60, 100, 160])
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
        told = "The engine was restarted before this step"
        assert told not in screen(app)
        await pilot.press("up")
        await pilot.pause()
        assert told in screen(app)
        await pilot.press("up")
        await pilot.pause()
        assert step_at(app, rows.cursor) == 40
        assert told not in screen(app)

    play(app, act, (width, 40))


def test_without_a_record_one_is_told() -> None:
    source = ScriptedSource()
    scene(source)
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        await pilot.press("up", "enter", "G")
        assert rows.cursor is None
        assert "No steps yet." in screen(app)

    play(app, act)


class Unreadable(MemoryStore):
    def _read(self, stored: CompressedData) -> bytes:
        raise RecordingError("it is broken")

    def _payloads(self, start: int, stop: int) -> list[bytes | None]:
        raise RecordingError("it is broken")


def test_a_step_that_cannot_be_read_is_a_line_that_says_so() -> None:
    source = ScriptedSource(history=Unreadable())
    scene(source, hostile="?")
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await opened(app, pilot)
        assert "This step cannot be read." in screen(app)

    play(app, act)


def test_a_recording_is_listed_whole_with_the_moment_on_show_marked() -> None:
    history = recorded().history
    assert history is not None
    app = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        assert rows.num_rows == 41
        await pilot.press("right_curly_bracket", "right")
        await pilot.pause()
        assert step_at(app, rows.cursor) == app.ui.state.step == 10
        assert "▌▸     10" in screen(app)

    play(app, act, (100, 30))


def test_reading_costs_what_is_in_sight(
    lines: Counter[LineView], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ScriptedSource(history=MemoryStore())
    script = Script(source)
    script.arrive("runs", max_tokens=MANY)
    script.step(prefill={"runs": 40})
    for _ in range(MANY):
        script.step(decode=[])
    app = SeqtopApp(source, clock=lambda: 0.0)

    history = source.history
    assert history is not None
    events, reads = history.events, []

    def read(start: int, stop: int) -> Iterator[tuple[int, object]]:
        reads.append(stop)
        return events(start, stop)

    monkeypatch.setattr(history, "events", read)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        assert isinstance(app.screen, StepsScreen)
        assert rows.num_rows == MANY + 1
        assert len(reads) <= rows.size.height + 1

        async def cost(*keys: str) -> tuple[int, int]:
            decoded, drawn = len(reads), lines[rows]
            await pilot.press(*keys)
            app.draw()
            await pilot.pause()
            return len(reads) - decoded, lines[rows] - drawn

        assert await cost() == (0, 0)
        decoded, drawn = await cost("g")
        assert decoded <= rows.size.height + 1
        assert drawn <= 2 * rows.size.height
        decoded, drawn = await cost("down")
        assert decoded <= 1
        assert drawn == 2
        await cost("G")
        script.step(decode=[])
        decoded, drawn = await cost()
        assert decoded == 1
        assert drawn <= 2 * rows.size.height

    play(app, act, (100, 30))


@pytest.mark.parametrize("width", range(1, 200))
def test_a_row_fills_its_width(width: int) -> None:
    slots = cells.arrange(width)
    used = sum(slot.width + 1 for slot in slots) - 1
    assert used == width or (width < 52 and slots[-1].width >= 1)


def test_a_rich_stream_is_drawn() -> None:
    source = ScriptedSource(history=MemoryStore())
    for event in EventScript(3, 30, num_blocks=24):
        source.apply(parsing.event(codec.encode(event)))
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        rows = await opened(app, pilot)
        await pilot.press("g", *["down"] * 10)
        assert rows.cursor is not None
        assert screen(app).count("▌") == 1

    play(app, act, (200, 50))
