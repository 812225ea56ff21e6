"""The cells of the block map: one for each block, with the signs of its state."""

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state.block_index import BlockIndex
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.block_grid import cell, text_line
from seqtop.tui.rendering.owner_marks import OwnerMarks, owner_mark
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.blocks.cells import FREE, BlockTexts, condensed_mark, grid
from tests.support.block_screen import pool, sequence
from tests.support.piloting import play, screen, words
from tests.support.scripted import Script, ScriptedSource, scene


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("num_device", [1, 64, 4_000, 250_000])
@pytest.mark.parametrize("num_host", [0, 300])
@pytest.mark.parametrize("size", [(80, 10), (160, 44), (12, 3), (1, 0)])
def test_every_block_is_in_one_cell(
    num_device: int, num_host: int, size: tuple[int, int], *, single: bool
) -> None:
    drawn = grid(num_device, num_host, *size, single=single)
    rows = {drawn.blocks(y) for y in range(drawn.height)} - {range(0)}
    assert sum(map(len, rows)) == num_device + num_host
    assert {0, num_device + num_host - 1} <= {at for cells in rows for at in (cells[0], cells[-1])}
    assert not drawn.blocks(-1)
    assert not drawn.blocks(drawn.height)
    count = num_device + num_host
    for block in {*range(min(count, 200)), *range(max(count - 200, 0), count)}:
        line, column = drawn.line(block), drawn.column(block)
        cell = drawn.cell(block)
        assert block in cell
        assert len(cell) <= drawn.span
        assert drawn.cell_at(column, line) == cell
        assert drawn.cell_at(column + drawn.width - 1, line + drawn.lines - 1) == cell
        assert drawn.moved(block, 0) == block
        assert 0 <= drawn.moved(block, 1) < count
        assert 0 <= drawn.moved(block, -1) < count
    if size[0] > 20:
        assert drawn.column(drawn.blocks(0)[-1]) + drawn.width <= size[0]
    assert drawn.moved(0, -5) == 0


@pytest.mark.parametrize("num_device", [1, 64, 256, 1_000, 4_000, 20_000, 90_000])
@pytest.mark.parametrize("size", [(78, 10), (118, 25), (130, 50)])
def test_a_pool_fits_its_window(num_device: int, size: tuple[int, int]) -> None:
    drawn = grid(num_device, 0, *size)
    assert drawn.height <= size[1]
    if drawn.span > 1:  # with fewer blocks in a cell, it would not
        assert drawn._replace(span=drawn.span - 1).height > size[1]
    elif num_device >= 64:  # the cells cover most of the lines and of the columns
        assert drawn.height > size[1] * 0.6
        assert drawn.per_row * drawn.pitch > size[0] * 0.6


def test_with_single_cells_a_large_pool_scrolls() -> None:
    drawn = grid(20_000, 0, 78, 10, single=True)
    assert drawn.span == 1
    assert drawn.height > 10


def test_a_cell_for_several_blocks_shows_how_many_are_used() -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=20)
    for name, num_tokens in (("one", 16), ("two", 48)):
        script.arrive(name, num_prompt=num_tokens)
        script.step(prefill={name: num_tokens}, decode=[])
    index = BlockIndex()
    index.rebuild(source.state)
    one, two = (source.state.requests[name].seq_ids[0] for name in ("one", "two"))
    blocks, marks = range(20), OwnerMarks()
    first = min(index.blocks(one) + index.blocks(two))
    owner = next(iter(index.owners(first)))
    style = owner_mark(owner)[1]
    assert condensed_mark(index, blocks, None, marks) == ("░", f"{style}-edge")
    assert condensed_mark(index, blocks, two, marks) == ("░", "selected-edge")
    run = range(min(index.blocks(two)), max(index.blocks(two)) + 1)
    assert condensed_mark(index, run, None, marks) == ("█", f"{owner_mark(two)[1]}-edge")
    unheld = range(max(index.blocks(one) + index.blocks(two)) + 1, 20) or range(first)
    assert condensed_mark(index, unheld, None, marks) == FREE


def test_a_wide_cell_is_coloured_as_far_as_its_slots_are_filled() -> None:
    drawn = grid(64, 0, 130, 50)
    assert (drawn.width, drawn.lines) == (11, 7)
    first, second, last = (
        cell(("A", "owner-0"), 0.25, 17, drawn, sub_line) for sub_line in (0, 1, drawn.lines - 1)
    )
    assert first[:2] == (("A", "owner-0"), (" 1", "owner-0-fill"))
    assert plain(first) == "A 17        "
    assert second[:2] == (("   ", "owner-0-fill"), (" " * 8, "unheld"))
    assert last[:2] == (("▀" * 3, "owner-0-fill-edge"), ("▀" * 8, "unheld-edge"))
    full = cell(("█", "selected"), 1.0, 17, drawn, 0, own="owner-2")
    assert full[:2] == (("█", "selected"), (" 17       ", "owner-2"))


def test_a_large_cell_has_the_text_of_its_block() -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=20)
    app = SeqtopApp(source, clock=lambda: 0.0)
    script.arrive("one", num_prompt=16, prompt="Tell me\na story")
    script.step(prefill={"one": 16})
    for _ in range(24):
        script.step()
    with play(app, (118, 40)) as pilot:
        pilot.press("2")
        (seq_id,) = source.state.requests["one"].seq_ids
        output = source.state.sequences[seq_id]
        texts, index = BlockTexts(), pool(app).index
        blocks = [texts.text(source.state, index, block) for block in output.block_table]
        assert blocks[0] == "Tell me a story"
        assert " ".join(blocks[1:]).replace(" ", "") == output.text.replace(" ", "")
        drawn = pool(app).block_grid
        first, second = (text_line(text, drawn, 1).strip() for text in blocks[:2])
        assert first in screen(app)
        assert second in screen(app)
        script.step(stop={"one": SequenceStatus.FINISHED_STOPPED})
        pilot.draw()
        assert second not in screen(app), "its blocks are free"


def test_cells_show_whose_blocks_they_are(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("2", "b", *"255", "enter")
        drawn = pool(app).visible_lines(0, pool(app).block_grid.height)
        shown = "".join(plain(line[2:]).replace(" ", "") for line, _ in drawn)
        assert len(shown) == 256
        own = sequence(app, "req-1")
        assert app.ui.cursor.seq_id == own
        for block, sign in enumerate(shown):
            owners = pool(app).index.owners(block)
            if own in owners:
                assert sign == ("█" if len(owners) == 1 else "▓")
            elif owners:
                assert sign.isalpha() if len(owners) == 1 else sign == "≡"
            else:
                assert sign == "·"
        pilot.press("1", "down", "down", "2")
        assert "≡" in screen(app).split("free or cached")[1]
        assert f"▌  {0:>2}" in screen(app)


def test_cached_blocks_have_a_sign_of_their_own() -> None:
    source = ScriptedSource()
    script = scene(source, tells_cached=True)
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (80, 24)) as pilot:
        pilot.press("2", "b", "3", "enter")
        state, index = app.ui.state, pool(app).index
        assert state.cached_blocks is not None
        unused = {block for block in state.cached_blocks if not index.owners(block)}
        assert 3 in unused
        assert len(unused) == state.stats.num_cached_blocks

        def signs() -> dict[int, str]:
            lines = (
                plain(pool(app).visible_lines(y, 1)[0][0][1:])
                for y in range(pool(app).block_grid.height)
            )
            cells = "".join(line[pool(app).block_grid.label :].replace(" ", "") for line in lines)
            return dict(enumerate(cells))

        assert {block for block, sign in signs().items() if sign == "°"} == unused
        text = words(app)
        assert "° cached · free" in text
        assert "Block 3 ° cached 0 references" in text
        assert "In no block table, but in the prefix cache: tokens 0 to 15, written by" in text
        pilot.press("enter")
        writer = state.cached_blocks[3].request_id
        assert f"No sequence holds this block; {writer}" in words(app)
        pilot.press("b", "0", "enter")
        assert "Also in the prefix cache: tokens 0 to 15, written by req-1;" in " ".join(
            screen(app).split()
        )
        script.engine.take_next(3)
        script.arrive("last", num_prompt=16)
        script.step(prefill={"last": 16}, decode=[])
        pilot.draw()
        assert signs()[3].isalpha()
