"""Numbers as text: whatever the wire says, short and never an exception."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from seqtop.text import format as fmt

ANY_NUMBER = st.none() | st.floats() | st.integers(-(10**400), 10**400) | st.integers(-2_000, 2_000)


@given(ANY_NUMBER)
def test_every_number_is_short_text(value: float | None) -> None:
    for form in (fmt.count, fmt.rate, fmt.seconds, fmt.percent):
        text = form(value)
        assert text
        assert text.isprintable()
        assert cell_len(text) <= fmt.MAX_WIDTH


@given(ANY_NUMBER, ANY_NUMBER)
def test_every_share_is_short_text(part: float | None, whole: float | None) -> None:
    assert 0 < cell_len(fmt.percent(part, whole)) <= fmt.MAX_WIDTH


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, fmt.UNKNOWN),
        (float("nan"), fmt.UNKNOWN),
        (float("inf"), "∞"),
        (float("-inf"), "-∞"),
        (10**400, "∞"),
        (0, "0"),
        (-7, "-7"),
        (12_345, "12,345"),
        (99_999, "99,999"),
        (100_000, "100k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (4_560_000, "4.56M"),
        (-2_500_000_000, "-2.50G"),
    ],
)
def test_count(value: float | None, text: str) -> None:
    assert fmt.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.00084, "840 µs"),
        (0.0123, "12.3 ms"),
        (0.12345, "123 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (4.56, "4.56 s"),
        (45.6, "45.6 s"),
        (125, "2m 05s"),
        (3 * 3600 + 12 * 60, "3h 12m"),
        (12 * 86400 + 4 * 3600, "12d 4h"),
        (-0.5, "-500 ms"),
        (1e300, "∞"),
        (-134_215_200, "-1553d"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert fmt.seconds(value) == text


def test_rate_and_percent() -> None:
    assert [fmt.rate(value) for value in (0.04, 42.06, 99.96, 1234)] == [
        "0.0",
        "42.1",
        "100",
        "1,234",
    ]
    assert fmt.percent(1, 3) == "33%"
    assert fmt.percent(1, 300) == "0.3%"
    assert fmt.percent(0, 3) == "0%"
    assert fmt.percent(1, 0) == fmt.UNKNOWN
    assert fmt.plural(1, "block") == "1 block"
    assert fmt.plural(1200, "block") == "1,200 blocks"


@pytest.mark.parametrize(
    ("value", "text"),
    [(5.2, "5 s"), (59.4, "59 s"), (60.0, "1 min"), (456.0, "8 min"), (9_000.0, "2 h")],
)
def test_rough_times(value: float, text: str) -> None:
    assert fmt.rough_time(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "250 ms"), (1.0, "1 s"), (59.99, "59 s"), (100.0, "1m 40s"), (None, fmt.UNKNOWN)],
)
def test_growing(value: float | None, text: str) -> None:
    assert fmt.growing(value) == text
    assert fmt.growing(float("inf")) == fmt.seconds(float("inf"))


@given(ANY_NUMBER)
def test_every_time_is_short_text(value: float | None) -> None:
    assert fmt.clock(value) == fmt.UNKNOWN or len(fmt.clock(value)) == len("14:03:22.450")
