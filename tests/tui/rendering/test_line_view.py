"""A view of lines is drawn also where none of its lines is in sight."""

import asyncio
from collections import Counter

from textual.geometry import Region

from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.sequences.block_table import BlockTablePane
from tests.support.drawing import crowd, drawn


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
