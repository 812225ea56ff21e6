"""A view of lines is drawn also where none of its lines is in sight."""

from collections import Counter
from collections.abc import Sequence

from textual.app import App, ComposeResult
from textual.geometry import Region

from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.screens.sequences.block_table import BlockTablePane
from tests.support.drawing import crowd, drawn
from tests.support.piloting import play


def test_a_pane_in_which_no_line_is_left_is_drawn_all_the_same(lines: Counter[LineView]) -> None:
    script, app = crowd(5)
    with play(app, (160, 50)) as pilot:
        drawn(app, pilot, lines)
        pane = app.screen.query_one(BlockTablePane)
        pane.notify_style_update()
        pane.refresh_changed()  # it has lines that are yet to be painted,
        pane.styles.height = pane.styles.min_height = 2  # and then its frame alone
        pilot.pause()
        assert pane.outer_size.height == 2
        assert len(pane.render_lines(Region(0, 0, pane.outer_size.width, 2))) == 2
        script.step()
        drawn(app, pilot, lines)


class Word(LineView):
    """A view whose only line is made when it is drawn."""

    word = "before"

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        return [(((self.word, PLAIN),), PLAIN)]


class OneView(App[None]):
    """An app with one view."""

    def __init__(self) -> None:
        super().__init__()
        self.view = Word()

    def compose(self) -> ComposeResult:
        yield self.view


def test_line_that_changes_with_the_style_is_drawn_although_textual_has_cached_another() -> None:
    app = OneView()

    def shown() -> str:
        (strip,) = app.view.render_lines(Region(0, 0, app.view.size.width, 1))
        return strip.text.strip()

    with play(app, (20, 4)):
        assert shown() == "before"
        app.view.notify_style_update()
        app.view.word = "after"
        assert shown() == "after"
