"""The cells of the list of steps."""

from seqtop.tui.screens.steps import cells


def test_a_row_fills_its_width() -> None:
    for width in range(1, 200):
        slots = cells.arrange(width, frozenset(cells.RARE))
        used = sum(slot.width + 1 for slot in slots) - 1
        assert used == width or (width < 52 and slots[-1].width >= 1), width
