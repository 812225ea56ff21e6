"""The columns that fit into a width, and their widths."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.text.column_layout import UNLIMITED, Column, fit

NAME = Column(key="name", title="Name", width=6, max_width=10, priority=0, right=False)
COUNT = Column(key="count", title="Count", width=5, priority=2)
RATE = Column(key="rate", title="Rate", width=4, priority=1)
TEXT = Column(
    key="text", title="Text", width=8, min_width=1, max_width=UNLIMITED, share=0.2, priority=0
)
TABLE = (NAME, COUNT, RATE, TEXT)


@pytest.mark.parametrize("place", [{"width": 5}, {"priority": 1}, {"width": 0, "priority": 1}])
def test_a_column_without_a_place_names_itself(place: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'speed'"):
        Column(key="speed", title="Speed", **place)


def test_the_largest_priority_is_left_out_first() -> None:
    assert [column.key for column in fit(TABLE, 26)] == ["name", "count", "rate", "text"]
    assert [column.key for column in fit(TABLE, 25)] == ["name", "rate", "text"]
    assert [column.key for column in fit(TABLE, 15)] == ["name", "text"]


def test_a_kept_column_stays() -> None:
    assert [column.key for column in fit(TABLE, 16, keep=("count",))] == ["name", "count", "text"]


def test_a_limited_column_grows_once_the_text_has_twice_its_share() -> None:
    assert [column.width for column in fit(TABLE, 34)] == [6, 5, 4, 16]
    assert [column.width for column in fit(TABLE, 36)] == [8, 5, 4, 16]
    assert [column.width for column in fit(TABLE, 60)] == [10, 5, 4, 38]


@given(st.integers(1, 300), st.integers(0, 3))
def test_the_columns_fill_the_width(width: int, gap: int) -> None:
    columns = fit(TABLE, width, gap=gap)
    assert {"name", "text"} <= {column.key for column in columns}
    total = sum(column.width for column in columns) + gap * (len(columns) - 1)
    assert total == width or (total > width and columns[-1].width == 1)
