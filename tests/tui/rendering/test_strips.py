"""Strips that were drawn go without the garbage collector."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.segment import Segment
from textual.strip import Strip

from seqtop.tui.rendering import strips
from seqtop.tui.rendering.line_view import LineView
from tests.support.drawing import crowd, drawn
from tests.support.piloting import play


@contextmanager
def garbage() -> Iterator[list[object]]:
    """Yields a list, which has at the end what only the collector would have removed."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_frames_leave_no_strips_as_garbage(lines: Counter[LineView]) -> None:
    script, app = crowd(20)
    with play(app, (160, 50)) as pilot:
        drawn(app, pilot, lines)
        with garbage() as found:
            for _ in range(10):
                script.step()
                drawn(app, pilot, lines)
    assert not [thing for thing in found if isinstance(thing, Strip)]


@pytest.mark.parametrize("cuts", [[4], [4, 9], [2], [1, 4], [1, 3], [9], [], [4, 4], [0, 4]])
def test_a_strip_is_divided_as_by_textual(cuts: list[int]) -> None:
    ours, theirs = (Strip([Segment("ab"), Segment("cd")], 4) for _ in range(2))
    for _ in range(2):  # the second one may come from the cache
        assert strips.divide(ours, iter(cuts)) == strips._divide(theirs, iter(cuts))
