"""CSV of a real run, read back; nothing in it does anything in a spreadsheet."""

import pytest

from seqtop.export import csv_rows


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("plain", "plain"),
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'    =1"),
        ("\r=1", "␍=1"),
        ("  =1", "'  =1"),
        ("＝1", "'＝1"),  # noqa: RUF001
        ("'=1", "'=1"),
        ('a,"b"', 'a,"b"'),
        ("a\nb", "a↵b"),
        (-1.5, -1.5),
        (7, 7),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_cells(value: float | str | None, cell: float | str | None) -> None:
    assert csv_rows.cell(value) == cell
