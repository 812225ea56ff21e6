"""The block map: what its cells say, and every key on it."""

import pytest
from textual.pilot import Pilot

from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import SequenceStatus
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.block_prompt import BlockPrompt
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.blocks.block_map import BlockMap
from seqtop.tui.screens.blocks.cells import cursor_column, grid
from seqtop.tui.screens.blocks.screen import BlocksScreen
from seqtop.tui.screens.sequences.filter_bar import FilterBar
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.sequences.table import Rows
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, scene


def pool(app: SeqtopApp) -> BlockMap:
    return app.screen.query_one(BlockMap)


def sequence(app: SeqtopApp, request_id: str, number: int = 0) -> int:
    return app.ui.state.requests[request_id].seq_ids[number]


def table(app: SeqtopApp, request_id: str) -> list[int]:
    return app.ui.state.sequences[sequence(app, request_id)].block_table


@pytest.mark.parametrize("num_device", [1, 16, 256, 4_000, 100_000])
@pytest.mark.parametrize("num_host", [0, 7, 300])
@pytest.mark.parametrize("size", [(80, 10), (160, 44), (12, 3)])
def test_every_block_has_one_cell(num_device: int, num_host: int, size: tuple[int, int]) -> None:
    drawn = grid(num_device, num_host, *size)
    blocks = [block for y in range(drawn.height) for block in drawn.blocks(y)]
    assert blocks == list(range(num_device + num_host))
    assert not drawn.blocks(-1)
    assert not drawn.blocks(drawn.height)
    for block in {*blocks[:200], *blocks[-200:]}:
        line, column = drawn.line(block), cursor_column(drawn, block)
        assert drawn.block_at(column, line) == block
        assert drawn.moved(block, 0) == block
        assert 0 <= drawn.moved(block, 1) < len(blocks)
        assert 0 <= drawn.moved(block, -1) < len(blocks)
    if size[0] > 20:
        assert cursor_column(drawn, drawn.blocks(0)[-1]) < size[0]
    assert drawn.moved(0, -5) == 0


def test_what_cells_say(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2", "b", *"255", "enter")
        await pilot.pause()
        drawn = pool(app).visible_lines(0, pool(app)._grid.height)
        shown = "".join(plain(line[2:]).replace(" ", "") for line, _ in drawn)
        assert len(shown) == 256
        own = sequence(app, "req-1")
        assert app.ui.selected == own
        for block, cell in enumerate(shown):
            owners = pool(app).index.owners(block)
            if own in owners:
                assert cell == ("█" if len(owners) == 1 else "▓")
            elif owners:
                assert cell.isalpha() if len(owners) == 1 else cell == "≡"
            else:
                assert cell == "·"
        await pilot.press("1", "down", "down", "2")
        await pilot.pause()
        assert "≡" in screen(app).split("free or cached")[1]
        assert f"▌  {0:>2}" in screen(app)

    play(app, act, (80, 24))


def test_what_the_prefix_cache_knows_has_a_sign_of_its_own() -> None:
    source = ScriptedSource()
    script = scene(source, tells_cached=True)
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2", "b", "3", "enter")
        await pilot.pause()
        state, index = app.ui.state, pool(app).index
        assert state.cached_blocks is not None
        unused = {block for block in state.cached_blocks if not index.owners(block)}
        assert 3 in unused
        assert state.stats is not None
        assert len(unused) == state.stats.num_cached_blocks

        def signs() -> dict[int, str]:
            lines = (
                plain(pool(app).visible_lines(y, 1)[0][0][1:])
                for y in range(pool(app)._grid.height)
            )
            cells = "".join(line[pool(app)._grid.label :].replace(" ", "") for line in lines)
            return dict(enumerate(cells))

        assert {block for block, sign in signs().items() if sign == "°"} == unused
        text = " ".join(screen(app).split())
        assert "° cached · free" in text
        assert "Block 3 ° cached 0 references" in text
        assert "In no block table, but in the prefix cache: tokens 0 to 15, written by" in text
        await pilot.press("b", "0", "enter")
        await pilot.pause()
        assert "Also in the prefix cache: tokens 0 to 15, written by req-1;" in " ".join(
            screen(app).split()
        )
        script.free.remove(3)
        script.free.append(3)
        script.arrive("last", num_prompt=16)
        script.step(prefill={"last": 16}, decode=[])
        app.draw()
        await pilot.pause()
        assert signs()[3].isalpha()

    play(app, act, (80, 24))


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
        assert top <= pool(app)._grid.line(block) < top + height

    play(app, act, (80, 24))


def test_four_keys_say_who_owns_a_block(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        block = table(app, "req-6")[3]
        assert block < 100
        await pilot.press("b", *str(block), "enter")
        await pilot.pause()
        assert isinstance(app.screen, BlocksScreen)
        text = screen(app)
        assert f"Block {block}   " in text
        assert "req-6" in text.split(f"Block {block}")[1].splitlines()[1]
        assert "logical block 3 of 113" in text
        assert "tokens 48 to 63" in text
        assert "16 of 16 slots filled" in text

    play(app, act, (80, 24))


def test_a_block_that_is_not_there_is_named(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("b", "minus", "enter")
        assert isinstance(app.screen, BlockPrompt)
        await pilot.press("backspace", *"777", "enter")
        await pilot.pause()
        assert [notice.message for notice in app._notifications] == [
            "There is no block 777; the last is 255."
        ]
        assert pool(app).cursor == 255

    play(app, act, (80, 24))


def test_a_shared_block_names_its_owners_in_turn(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        block = table(app, "req-2")[0]
        assert table(app, "req-1")[0] == block
        await pilot.press("G", "b", *str(block), "enter")
        await pilot.pause()
        text = screen(app)
        assert "shared by 2   2 references" in text
        assert "req-1  seq" in text
        assert "req-2  seq" in text
        for name in ("req-1", "req-2", "req-1"):
            await pilot.press("o")
            assert app.ui.selected == sequence(app, name)
            assert pool(app).cursor == block
        await pilot.press("o", "enter")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.selected == sequence(app, "req-2")

    play(app, act, (80, 24))


def test_enter_goes_to_the_owner_and_back_again_is_its_block(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        block = table(app, "req-5")[1]
        await pilot.press("b", *str(block), "enter", "enter")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.selected == sequence(app, "req-5")
        assert "▌req-5" in screen(app)
        await pilot.press("2")
        await pilot.pause()
        assert pool(app).cursor == block
        await pilot.press("1", "up", "2")
        await pilot.pause()
        assert pool(app).cursor == table(app, "req-4")[0]

    play(app, act, (80, 14))


def test_nobodys_block_has_no_owner_to_go_to(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("b", *"255", "enter")
        await pilot.pause()
        assert "107 are empty and 10 are still in the prefix cache" in " ".join(screen(app).split())
        before = app.ui.selected
        await pilot.press("enter", "o")
        await pilot.pause()
        assert isinstance(app.screen, BlocksScreen)
        assert app.ui.selected == before

    play(app, act, (80, 24))


def test_the_blocks_of_the_selected_sequence_one_by_one(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        blocks = table(app, "req-1")
        await pilot.press("2")
        await pilot.pause()
        assert pool(app).cursor == blocks[0]
        for block in [*blocks[1:], blocks[0]]:
            await pilot.press("right_square_bracket")
            assert pool(app).cursor == block
        await pilot.press("left_square_bracket")
        assert pool(app).cursor == blocks[-1]
        await pilot.press("b", *"255", "enter", "right_square_bracket")
        assert pool(app).cursor == blocks[0]

    play(app, act, (80, 24))


def test_an_owner_that_the_filter_hides_is_shown_all_the_same(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"req-1", "enter")
        await pilot.press("b", *str(table(app, "req-5")[0]), "enter", "enter")
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.selected == sequence(app, "req-5")
        assert not app.screen.query_one(FilterBar).display
        assert "▌req-5" in screen(app)

    play(app, act, (80, 24))


def test_a_click_moves_the_cursor(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await pilot.pause()
        grid = pool(app)._grid
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


def test_the_past_shows_the_blocks_of_then() -> None:
    source = ScriptedSource(history=MemoryStore())
    script = Script(source, num_gpu_blocks=40)
    script.arrive("one")
    script.step(prefill={"one": 40})
    for _ in range(10):
        script.step()
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await pilot.pause()
        assert len(pool(app).index.blocks(1)) == 4
        await pilot.press("0")
        await pilot.pause()
        assert "The engine has published no blocks yet." in screen(app)
        await pilot.press(*["full_stop"] * 3)
        await pilot.pause()
        assert len(pool(app).index.blocks(1)) == 3
        assert ", . step, space resumes." in " ".join(screen(app).split())
        await pilot.press("L")
        app.draw()
        await pilot.pause()
        assert len(pool(app).index.blocks(1)) == 4

    play(app, act, (100, 24))


def test_token_ids_of_a_block_are_told_where_they_are_known() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("one", num_prompt=20)
    source.state.requests["one"].prompt_token_ids = list(range(100, 120))
    script.step(prefill={"one": 20})
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await pilot.pause()
        assert f"token ids {' '.join(map(str, range(100, 116)))}" in " ".join(screen(app).split())
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert "token ids 116 117 118 119 1 " in screen(app)
        assert "4 of 16 slots filled" in screen(app)

    play(app, act, (100, 24))


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
