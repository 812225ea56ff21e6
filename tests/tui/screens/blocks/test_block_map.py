"""The block map: its cursor, its pools, and the cells that are drawn again."""

import asyncio
from collections import Counter

import pytest
from textual.pilot import Pilot

from seqtop.sequence import SequenceStatus
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.blocks.block_map import BlockMap
from seqtop.tui.screens.blocks.cells import cursor_column
from seqtop.tui.screens.sequences.table import Rows
from tests.support.block_screen import pool, table
from tests.support.drawing import drawn
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, scene


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


@pytest.mark.parametrize(
    ("keys", "block"),
    [
        (("right", "l", "l"), 3),
        (("right", "right", "left", "h"), 0),
        (("left",), 0),
        (("down",), 30),
        (("down", "j", "k"), 30),
        (("up",), 0),
        (("right", "end"), 29),
        (("down", "end", "home"), 30),
        (("G",), 255),
        (("G", "g"), 0),
        (("G", "home"), 240),
        (("G", "up", "end", "down"), 255),
        (("pagedown", "pageup"), 0),
        (("ctrl+f",), 240),
        (("G", "ctrl+b"), 15),
        (("b", "1", "7", "enter"), 17),
        (("b", "1", "7", "escape"), 0),
    ],
)
def test_moving(app: SeqtopApp, keys: tuple[str, ...], block: int) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await pilot.pause()
        pool(app).go_to(0)
        await pilot.press(*keys)
        await pilot.pause()
        assert pool(app).cursor == block
        assert f"Block {block} " in screen(app)
        top, height = pool(app).scroll_offset.y, pool(app).size.height
        assert top <= pool(app).block_grid.line(block) < top + height

    play(app, act, (80, 24))


def test_a_click_moves_the_cursor(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await pilot.pause()
        grid = pool(app).block_grid
        await pilot.click(BlockMap, offset=(1 + cursor_column(grid, 47), grid.line(47)))
        assert pool(app).cursor == 47
        await pilot.click(BlockMap, offset=(1, 0))
        assert pool(app).cursor == 47

    play(app, act, (80, 24))


def test_host_blocks_show_who_is_swapped_out() -> None:
    source = ScriptedSource()
    scene(source, num_cpu_blocks=40)
    state = source.state
    victim = state.sequences[state.requests["req-5"].seq_ids[0]]
    victim.status, victim.host_table = SequenceStatus.SWAPPED, [3, 4]
    victim.block_table = []
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2", "G")
        await pilot.pause()
        assert "host memory, to swap to" in screen(app)
        assert "2 swapped out" in screen(app)
        assert "Host block 39   · free" in screen(app)
        assert "⇄ ⇄" in screen(app)
        await pilot.press("b", "0", "enter", "G", "home", "right", "right", "right")
        await pilot.pause()
        assert pool(app).cursor == 256 + 30 + 3
        pool(app).go_to(256 + 3)
        await pilot.pause()
        assert "Host block 3   ⇄ swapped out" in screen(app)
        assert "logical block 0 of 2" in screen(app)
        await pilot.press("up", "down")
        assert pool(app).cursor == 256 + 3

    play(app, act, (80, 30))


def test_the_selection_moves_with_the_cursor_of_the_table(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("down")
        rows = app.screen.query_one(Rows)
        assert rows.has_focus
        await pilot.press("2")
        await pilot.pause()
        assert pool(app).has_focus
        assert pool(app).cursor == table(app, "req-2")[0]

    play(app, act, (80, 24))
