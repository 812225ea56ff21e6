"""Every list moves by the same keys."""

import pytest

from seqtop.text.column_layout import Column
from seqtop.tui.rendering.list_view import ListView, header
from seqtop.tui.rendering.style import plain
from tests.support.every_screen import NAMES, leading_to, several
from tests.support.piloting import checked, play, until

MOVES = (
    (("G", "end"), lambda row, page, last: last),
    (("up", "k"), lambda row, page, last: max(row - 1, 0)),
    (("pageup", "ctrl+b"), lambda row, page, last: max(row - page, 0)),
    (("g", "home"), lambda row, page, last: 0),
    (("down", "j"), lambda row, page, last: min(row + 1, last)),
    (("pagedown", "ctrl+f"), lambda row, page, last: min(row + page, last)),
)
"""Keys of every list, and the row they lead to: of one, the height of a page and the last row."""
WITHOUT_LIST = {"blocks", "overview"}
"""The screens that focus no list when they are opened."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_LIST])
def test_every_list_moves_by_the_same_keys(name: str) -> None:
    app = several()
    with play(app) as pilot:
        pilot.press(leading_to(name))
        until(
            pilot,
            lambda: isinstance(app.focused, ListView),
            "the screen focuses no list, and is not in WITHOUT_LIST",
        )
        if name == "checks":
            checked(app, pilot)
        listing = app.focused
        assert isinstance(listing, ListView)
        assert listing.num_rows > 1
        for keys, leads_to in MOVES:
            for key in keys:
                if key == "G" and name == "sequences":
                    continue  # there it groups
                row, page, last = listing.cursor_row, listing.size.height, listing.num_rows - 1
                assert row is not None
                pilot.press(key)
                assert listing.cursor_row in {
                    leads_to(row, page, last),
                    leads_to(row, page - 1, last),
                }


def test_titles_stand_above_their_columns() -> None:
    columns = [
        Column(key="name", title="Name", width=6, priority=0, right=False),
        Column(key="count", title="Count", width=7, priority=0),
    ]
    assert plain(header(columns)) == "Name     Count"
    assert plain(header(columns, gap=" | ")) == "Name   |   Count"
