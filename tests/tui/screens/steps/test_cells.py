"""The cells of the list of steps."""

import pytest

from seqtop.tui.screens.steps import cells


@pytest.mark.parametrize("width", range(1, 200))
def test_a_row_fills_its_width(width: int) -> None:
    slots = cells.arrange(width)
    used = sum(slot.width + 1 for slot in slots) - 1
    assert used == width or (width < 52 and slots[-1].width >= 1)
