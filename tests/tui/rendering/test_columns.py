"""The line of titles."""

from seqtop.text.column_layout import Column
from seqtop.tui.rendering.columns import header
from seqtop.tui.rendering.style import plain


def test_titles_stand_above_their_columns() -> None:
    columns = [
        Column(key="name", title="Name", width=6, priority=0, right=False),
        Column(key="count", title="Count", width=7, priority=0),
    ]
    assert plain(header(columns)) == "Name     Count"
    assert plain(header(columns, gap=" | ")) == "Name   |   Count"
