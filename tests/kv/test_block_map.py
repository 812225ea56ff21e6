"""The block map of KV-cache events."""

from collections import Counter

from seqtop.kv.block_map import KvBlockMap
from seqtop.kv.messages import AllBlocksCleared, BlockRemoved
from seqtop.tui.rendering.line_view import LineView
from tests.support.kv_scene import ScriptedKvSource, app_of, digest, run
from tests.support.piloting import play, screen


def test_only_lines_that_changed_are_drawn(
    source: ScriptedKvSource, lines: Counter[LineView]
) -> None:
    app = app_of(source)
    with play(app) as pilot:
        blocks = app.screen.query_one(KvBlockMap)
        pilot.pause()
        before = lines[blocks]
        source.send(BlockRemoved([digest(5, 8)], "GPU", 0))
        pilot.draw()
        # The tier's title, with one block less, and the row that the block was in.
        assert lines[blocks] - before == 2


def test_a_frame_may_be_drawn_when_its_cells_are_gone(source: ScriptedKvSource) -> None:
    app = app_of(source)
    with play(app) as pilot:
        blocks = app.screen.query_one(KvBlockMap)
        pilot.press("end")
        source.send(AllBlocksCleared(), run(9, 0, 2, medium="DISK"), run(9, 0, 1))
        blocks.visible_lines(0, blocks.size.height)
        blocks.action_move(1)
        blocks.action_rows(-1)
        pilot.draw()
        assert "DISK  2 blocks" in screen(app)
