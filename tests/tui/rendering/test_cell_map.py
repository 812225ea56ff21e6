"""Rows of cells, and the cursor in them."""

import pytest

from seqtop.tui.rendering.cell_map import GROUP, cell_row, with_cursor
from seqtop.tui.rendering.style import plain


@pytest.mark.parametrize("pitch", [1, 2])
def test_cells_are_in_groups_of_ten_behind_the_label(pitch: int) -> None:
    signs = "abcdefghijklmnopqrstuvwxy"
    text = plain(cell_row("  40 ", [((f"{sign:<{pitch}}", "running"),) for sign in signs]))
    assert text.startswith("  40 ")
    for column, sign in enumerate(signs):
        assert text[5 + column * pitch + column // GROUP] == sign


def test_neighbours_of_one_style_are_one_span() -> None:
    line = cell_row("0 ", [(("a", "running"),), (("b", "running"), ("c", "dim"))])
    assert line == (("0 ", "dim"), ("ab", "running"), ("c", "dim"))


@pytest.mark.parametrize(("sign", "shown"), [("a", "a"), ("█", "■"), ("▓", "≡"), ("▀", "▄")])
def test_the_cursor_marks_one_cell_and_shows_its_sign(sign: str, shown: str) -> None:
    line = (("0 ", "dim"), (f"x{sign}y", "running"))
    assert with_cursor(line, 3) == (
        ("0 ", "dim"),
        ("x", "running"),
        (shown, "marked"),
        ("y", "running"),
    )
    assert with_cursor(line, 9) == line


def test_the_cursor_marks_a_cell_of_several_columns_and_styles() -> None:
    line = (("0 ", "dim"), ("A1", "owner-0"), ("  ", "unheld"), ("B", "owner-1"))
    assert with_cursor(line, 2, width=3) == (
        ("0 ", "dim"),
        ("A1", "marked"),
        (" ", "marked"),
        (" ", "unheld"),
        ("B", "owner-1"),
    )
