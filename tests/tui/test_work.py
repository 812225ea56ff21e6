"""What is drawn again when something changes: no more than what looks different."""

import asyncio
from collections import Counter

import pytest
from textual.geometry import Region
from textual.pilot import Pilot

from seqtop.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.blocks.block_map import BlockMap
from seqtop.tui.screens.sequences.block_table import BlockTablePane, shared_owners
from seqtop.tui.screens.sequences.detail import Detail
from seqtop.tui.screens.sequences.table import Rows
from seqtop.tui.ui_state import UiState
from seqtop.wire.messages import Heartbeat
from tests.support.piloting import until
from tests.support.scripted import Script, ScriptedSource

MANY = 10_000


def crowd(number: int) -> tuple[Script, SeqtopApp]:
    """An engine with `number` waiting requests and one that runs."""
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    for index in range(number):
        script.arrive(f"waits-{index}")
    return script, SeqtopApp(source, clock=lambda: 0.0)


async def drawn(app: SeqtopApp, pilot: Pilot[int], lines: Counter[LineView]) -> dict[str, int]:
    """Wait until nothing is left to draw; how many lines each view has drawn so far."""
    app.draw()
    await pilot.pause()
    return {view.id or type(view).__name__: lines[view] for view in app.screen.query(LineView)}


def test_one_changed_row_among_ten_thousand_is_one_line(lines: Counter[LineView]) -> None:
    async def run() -> None:
        script, app = crowd(MANY)
        async with app.run_test(size=(120, 24)) as pilot:
            before = await drawn(app, pilot, lines)
            script.time = int(script.time) + 0.5  # within a second, so that no clock ticks
            app.draw()
            before = await drawn(app, pilot, lines)
            script.step()
            after = await drawn(app, pilot, lines)
            assert after["Rows"] - before["Rows"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("number", [100, 20_000])
def test_a_frame_in_which_all_changes_draws_what_is_in_sight(
    number: int, lines: Counter[LineView]
) -> None:
    async def run() -> None:
        script, app = crowd(number)
        async with app.run_test(size=(120, 24)) as pilot:
            before = await drawn(app, pilot, lines)
            for seq_id in list(script.source.state.sequences)[1:]:
                script.source.state.sequences[seq_id].num_cached_tokens += 1
            script.source.touch(set(script.source.state.sequences))
            after = await drawn(app, pilot, lines)
            num_rows = app.screen.query_one(Rows).size.height
            assert after["Rows"] - before["Rows"] == num_rows - 1  # the first has not changed
            assert sum(after.values()) - sum(before.values()) <= num_rows + 8

    asyncio.run(run())


@pytest.mark.parametrize("number", [10, 3_000])
def test_shared_blocks_name_another_owner(number: int) -> None:
    script = Script(ScriptedSource(), num_gpu_blocks=100_000)
    for index in range(number):
        script.arrive(f"runs-{index}", num_prompt=160)
    script.step(prefill={f"runs-{index}": 160 for index in range(number)})
    ui = UiState(script.source)
    ui.update()
    mine, other = (ui.state.sequences[each] for each in (1, number))
    other.block_table = [*mine.block_table[:2], *other.block_table[2:]]
    assert shared_owners(ui, mine) == dict.fromkeys(mine.block_table[:2], other.request_id)


def test_a_paused_display_names_shared_blocks() -> None:
    async def run() -> None:
        number = 600
        script = Script(ScriptedSource(), num_gpu_blocks=100_000)
        for index in range(number):
            script.arrive(f"runs-{index}", num_prompt=160)
        script.step(prefill={f"runs-{index}": 160 for index in range(number)})
        mine, other = (script.source.state.sequences[each] for each in (1, number))
        other.block_table = [*mine.block_table[:2], *other.block_table[2:]]
        app = SeqtopApp(script.source, clock=lambda: 0.0)
        async with app.run_test(size=(160, 50)) as pilot:
            await pilot.press("space")
            blocks = app.screen.query_one(BlockTablePane)
            await until(pilot, lambda: "2 shared" in plain(blocks.visible_lines(0, 1)[0][0]))

    asyncio.run(run())


def test_a_frame_draws_no_titles_and_no_tabs_again(lines: Counter[LineView]) -> None:
    async def run() -> None:
        script, app = crowd(200)
        async with app.run_test(size=(160, 50)) as pilot:
            await drawn(app, pilot, lines)
            script.time = int(script.time) + 0.3
            script.step()
            before = await drawn(app, pilot, lines)
            for _ in range(3):
                script.step()
            after = await drawn(app, pilot, lines)
            assert after["Rows"] > before["Rows"]
            for name in ("Titles", "ScreenTabs", "DetailTabs"):
                assert after[name] == before[name]

    asyncio.run(run())


def test_nothing_is_laid_out_anew_while_blocks_fill(lines: Counter[LineView]) -> None:
    async def run() -> None:
        script, app = crowd(3)
        script.step()
        async with app.run_test(size=(160, 50)) as pilot:
            await drawn(app, pilot, lines)
            layouts: list[object] = []
            app.screen.screen_layout_refresh_signal.subscribe(app.screen, layouts.append)
            held = len(script.actors["runs"].tables[1])
            for _ in range(18):
                script.step()
                await drawn(app, pilot, lines)
            assert len(script.actors["runs"].tables[1]) > held
            assert not layouts

    asyncio.run(run())


def test_a_selection_that_is_on_show_is_not_drawn_again(lines: Counter[LineView]) -> None:
    async def run() -> None:
        _, app = crowd(30)
        async with app.run_test(size=(160, 50)) as pilot:
            await pilot.press("down")
            await drawn(app, pilot, lines)
            parts = [*app.screen.query_one(Detail).query(LineView)]
            before = sum(lines[part] for part in parts)
            rows = app.screen.query_one(Rows)
            rows.post_message(Rows.Moved())
            await drawn(app, pilot, lines)
            after = sum(lines[part] for part in parts)
            assert after == before

    asyncio.run(run())


def test_a_row_out_of_sight_is_no_line(lines: Counter[LineView]) -> None:
    async def run() -> None:
        script, app = crowd(MANY)
        async with app.run_test(size=(120, 24)) as pilot:
            await drawn(app, pilot, lines)
            await pilot.press("G")
            before = await drawn(app, pilot, lines)
            script.step()
            after = await drawn(app, pilot, lines)
            assert after["Rows"] == before["Rows"]

    asyncio.run(run())


def test_idle_draws_nothing(lines: Counter[LineView]) -> None:
    async def run() -> None:
        script, app = crowd(30)
        script.step()
        async with app.run_test(size=(120, 40)) as pilot:
            before = await drawn(app, pilot, lines)
            for _ in range(10):
                after = await drawn(app, pilot, lines)
            assert after == before

    asyncio.run(run())


def test_heartbeats_of_an_idle_engine_draw_nothing(lines: Counter[LineView]) -> None:
    async def run() -> None:
        source = ScriptedSource()
        script = Script(source)
        script.arrive("done")
        script.step(prefill={"done": 40}, stop={"done": SequenceStatus.FINISHED_STOPPED})
        app = SeqtopApp(source, clock=lambda: 0.0)
        async with app.run_test(size=(100, 24)) as pilot:
            for beat in range(3):  # until the rates have come down to nothing
                source.apply(Heartbeat(time=script.time + beat + 1, step=0))
                before = await drawn(app, pilot, lines)
            painted: list[bool] = []
            app.post_display_hook = lambda: painted.append(True)  # type: ignore[method-assign]
            for beat in range(4, 24):
                source.apply(Heartbeat(time=script.time + beat, step=0))
                after = await drawn(app, pilot, lines)
            assert after == before
            assert not painted  # no frame went to the terminal

    asyncio.run(run())


def test_a_second_redraws_the_visible_waiting_rows_and_no_other(lines: Counter[LineView]) -> None:
    async def run() -> None:
        source = ScriptedSource()
        script = Script(source)
        script.arrive("runs")
        script.step(prefill={"runs": 40})
        script.arrive("waits-1")
        script.arrive("waits-2")
        app = SeqtopApp(source, clock=lambda: 0.0)
        async with app.run_test(size=(120, 24)) as pilot:
            source.apply(Heartbeat(time=script.time + 5, step=0))
            before = await drawn(app, pilot, lines)
            source.apply(Heartbeat(time=script.time + 7, step=0))
            after = await drawn(app, pilot, lines)
            assert after["Rows"] - before["Rows"] == 2

    asyncio.run(run())


def test_moving_the_cursor_redraws_two_lines(lines: Counter[LineView]) -> None:
    async def run() -> None:
        _, app = crowd(MANY)
        async with app.run_test(size=(120, 24)) as pilot:
            before = await drawn(app, pilot, lines)
            await pilot.press("down")
            after = await drawn(app, pilot, lines)
            assert after["Rows"] - before["Rows"] == 2

    asyncio.run(run())


def test_a_changed_block_among_a_hundred_thousand_is_one_line(lines: Counter[LineView]) -> None:
    async def run() -> None:
        source = ScriptedSource()
        script = Script(source, num_gpu_blocks=100_000)
        script.arrive("runs", num_prompt=4_000)
        script.step(prefill={"runs": 4_000})
        app = SeqtopApp(source, clock=lambda: 0.0)
        async with app.run_test(size=(120, 24)) as pilot:
            await pilot.press("2")
            script.time = int(script.time) + 0.5
            script.step()
            await drawn(app, pilot, lines)
            pool = app.screen.query_one(BlockMap)
            before = lines[pool]
            taken = len(script.actors["runs"].tables[1])
            while len(script.actors["runs"].tables[1]) == taken:
                script.step()
            await drawn(app, pilot, lines)
            assert lines[pool] - before == 1
            await pilot.press("G")  # what changes out of sight is made when it is looked at
            await drawn(app, pilot, lines)
            before = lines[pool]
            for _ in range(20):
                script.step()
            await drawn(app, pilot, lines)
            assert lines[pool] == before

    asyncio.run(run())


def test_a_lost_engine_ages_in_the_header_alone(lines: Counter[LineView]) -> None:
    async def run() -> None:
        clock = [100.0]
        script, _ = crowd(5)
        app = SeqtopApp(script.source, clock=lambda: clock[0])
        async with app.run_test(size=(120, 24)) as pilot:
            script.source.connect(ConnectionState.LOST, "No word from the engine.")
            before = await drawn(app, pilot, lines)
            clock[0] += 3
            after = await drawn(app, pilot, lines)
            assert {name for name in after if after[name] != before[name]} == {"header"}
            assert after["header"] - before["header"] == 1

    asyncio.run(run())


def test_an_arrival_out_of_sight_draws_no_row(lines: Counter[LineView]) -> None:
    async def run() -> None:
        script, app = crowd(200)
        async with app.run_test(size=(120, 24)) as pilot:
            before = await drawn(app, pilot, lines)
            script.arrive("late")
            after = await drawn(app, pilot, lines)
            assert after["Rows"] == before["Rows"]
            assert app.screen.query_one(Rows).virtual_size.height == 202

    asyncio.run(run())


def test_a_pane_in_which_no_line_is_left_is_drawn_all_the_same(lines: Counter[LineView]) -> None:
    async def run() -> None:
        script, app = crowd(5)
        async with app.run_test(size=(160, 50)) as pilot:
            await drawn(app, pilot, lines)
            pane = app.screen.query_one(BlockTablePane)
            pane.notify_style_update()
            pane.refresh_changed()  # it has lines that are yet to be painted,
            pane.styles.height = pane.styles.min_height = 1  # and then its border alone
            await pilot.pause()
            assert pane.outer_size.height == 1
            assert len(pane.render_lines(Region(0, 0, pane.outer_size.width, 1))) == 1
            script.step()
            await drawn(app, pilot, lines)

    asyncio.run(run())
