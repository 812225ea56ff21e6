"""Counts the lines that widgets draw."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from textual.strip import Strip

from seqtop.tui.rendering.line_view import LineView


@contextmanager
def counted_lines() -> Iterator[Counter[LineView]]:
    """Counts, for each view, the lines that Textual asks it to draw."""
    counts: Counter[LineView] = Counter()
    render_line = LineView.render_line

    def spy(view: LineView, y: int) -> Strip:
        counts[view] += 1
        return render_line(view, y)

    with mock.patch.object(LineView, "render_line", spy):
        yield counts
