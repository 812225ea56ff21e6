"""The block map: its cursor, its pools, and the cells that are drawn again."""

from collections import Counter

from msgspec.structs import replace

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.block_cursor import BlockCursor
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.blocks.block_map import BlockMap
from seqtop.tui.screens.sequences.table import Rows
from tests.support.block_screen import pool, table
from tests.support.drawing import drawn
from tests.support.events import arrival, engine_info, step, update
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, scene


def test_a_changed_block_among_a_hundred_thousand_is_one_line(lines: Counter[LineView]) -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=100_000)
    script.arrive("runs", num_prompt=4_000)
    script.step(prefill={"runs": 4_000})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 24)) as pilot:
        pilot.press("2", "z")
        script.time = int(script.time) + 0.5
        script.step()
        drawn(app, pilot, lines)
        pool = app.screen.query_one(BlockMap)
        before = lines[pool]
        taken = len(script.actors["runs"].seqs[0].table)
        while len(script.actors["runs"].seqs[0].table) == taken:
            script.step()
        drawn(app, pilot, lines)
        assert lines[pool] - before == 1
        pilot.press("G")  # what changes out of sight is made when it is looked at
        drawn(app, pilot, lines)
        before = lines[pool]
        for _ in range(20):
            script.step()
        drawn(app, pilot, lines)
        assert lines[pool] == before


MOVES = [
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
]


def test_moving(app: SeqtopApp) -> None:
    with play(app, (80, 27)) as pilot:
        pilot.press("2")
        for keys, block in MOVES:
            pool(app).go_to(0)
            pilot.press(*keys)
            assert pool(app).cursor == block, keys
            assert f"Block {block} " in screen(app), keys
            top, height = pool(app).scroll_offset.y, pool(app).size.height
            assert top <= pool(app).block_grid.line(block) < top + height, keys


def test_a_click_moves_the_cursor(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("2")
        grid = pool(app).block_grid
        pilot.click(BlockMap, offset=(1 + grid.column(47), grid.line(47)))
        assert pool(app).cursor == 47
        pilot.click(BlockMap, offset=(1, 0))
        assert pool(app).cursor == 47


def test_host_blocks_show_who_is_swapped_out() -> None:
    source = ScriptedSource()
    scene(source, num_cpu_blocks=40)
    state = source.state
    victim = state.sequences[state.requests["req-5"].seq_ids[0]]
    victim.status, victim.host_table = SequenceStatus.SWAPPED, [3, 4]
    assert state.stats is not None
    state.stats = replace(state.stats, num_free_cpu_blocks=38)
    victim.block_table = []
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (80, 30)) as pilot:
        pilot.press("2", "G")
        assert "host memory, to swap to" in screen(app)
        assert "2 swapped out   38 free in host memory" in screen(app)
        assert "Host block 39   · free" in screen(app)
        assert "⇄ ⇄" in screen(app)
        pilot.press("b", "0", "enter", "G", "home", "right", "right", "right")
        assert pool(app).cursor == 256 + 30 + 3
        pool(app).go_to(256 + 3)
        pilot.pause()
        assert "Host block 3   ⇄ swapped out" in screen(app)
        assert "logical block 0 of 2" in screen(app)
        pilot.press("up", "down")
        assert pool(app).cursor == 256 + 3


def test_the_selection_moves_with_the_cursor_of_the_table(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("down")
        rows = app.screen.query_one(Rows)
        assert rows.has_focus
        pilot.press("2")
        assert pool(app).has_focus
        assert pool(app).cursor == table(app, "req-2")[0]


def test_a_large_pool_is_seen_at_once_and_cell_by_cell() -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=20_000)
    for name in ("one", "two"):
        script.arrive(name, num_prompt=48_000)
        script.step(prefill={name: 48_000}, decode=[])
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (80, 24)) as pilot:
        pilot.press("2")
        drawn = pool(app).block_grid
        assert drawn.span > 1
        assert drawn.height <= pool(app).size.height
        assert f"used of {drawn.span} blocks a cell" in screen(app)
        assert pool(app).visible_owners() == {1, 2}
        own = table(app, "two")
        pilot.press("b", *str(own[0]), "enter")
        assert pool(app).cursor == own[0]
        pilot.press("right", "left")
        cell = drawn.cell(own[0])
        assert pool(app).cursor == next(filter(pool(app).index.owners, cell))
        pilot.pause()
        assert f"Blocks {cell[0]} to {cell[-1]}" in screen(app)
        pilot.click(BlockMap, offset=(1 + drawn.column(own[-1]), drawn.line(own[-1])))
        assert pool(app).cursor in drawn.cell(own[-1])
        pilot.press("g", "down", "right", "z")
        cursor = pool(app).cursor
        assert pool(app).block_grid.span == 1
        assert "Blocks" not in screen(app).split("Block ")[-1]
        pilot.press("right")
        assert pool(app).cursor == cursor + 1
        pilot.press("z")
        assert pool(app).block_grid == drawn


def test_a_release_is_seen_in_a_large_pool(lines: Counter[LineView]) -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=20_000)
    script.arrive("ends", num_prompt=4_000)
    script.step(prefill={"ends": 4_000})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 40)) as pilot:
        pilot.press("2")
        drawn(app, pilot, lines)
        assert "█" in screen(app).split("blocks a cell")[1]
        script.step(stop={"ends": SequenceStatus.FINISHED_LENGTH_CAPPED})
        drawn(app, pilot, lines)
        assert pool(app).visible_owners() == set()


def test_blocks_that_leave_the_prefix_cache_are_seen_in_a_large_pool(
    lines: Counter[LineView],
) -> None:
    """Nobody held them: no block table changes."""
    source = ScriptedSource()
    script = Script(source, tells_cached=True, num_gpu_blocks=20_000)
    script.arrive("ends", num_prompt=4_000)
    script.step(prefill={"ends": 4_000}, stop={"ends": SequenceStatus.FINISHED_LENGTH_CAPPED})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 40)) as pilot:
        pilot.press("2")
        drawn(app, pilot, lines)
        assert "° cached" in screen(app)
        cells = screen(app).split("blocks a cell")[1]
        assert "°" in cells.split("cached", 1)[1]
        left = list(app.ui.state.cached_blocks or ())
        seconds = {"start_time": script.time, "time": script.time + 2.0}
        source.apply(step(script.number, newly_cached_blocks=[], uncached_blocks=left, **seconds))
        drawn(app, pilot, lines)
        assert not app.ui.state.cached_blocks
        assert "°" not in screen(app).split("blocks a cell")[1].split("cached", 1)[1]


def test_a_small_pool_has_no_larger_cells_to_zoom_to(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("2", "z")
        assert "Every block has a cell of its own." in screen(app)


def test_blocks_that_changed_in_frames_without_a_map_are_drawn_with_the_next() -> None:
    state, cursor = EngineState(), BlockCursor()
    for event in (engine_info(), arrival(1), arrival(2)):
        state.apply(event)
    cursor.index(state)
    cursor.take_changed()
    for seq_id in (1, 2):
        state.apply(step(seq_id, sequences=[update(seq_id, blocks=[10 + seq_id])]))
        cursor.update(state, {seq_id})
    assert cursor.take_changed() == {11, 12}
