"""The cells of the block map: one for each block, with the signs of its state."""

import pytest
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.blocks.cells import cursor_column, grid
from tests.support.block_screen import pool, sequence
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource, scene


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
        drawn = pool(app).visible_lines(0, pool(app).block_grid.height)
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
                for y in range(pool(app).block_grid.height)
            )
            cells = "".join(line[pool(app).block_grid.label :].replace(" ", "") for line in lines)
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
