"""Wrapping: nothing is lost, nothing is too wide, growing equals wrapping anew."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from seqtop.tui.rendering.wrapped_text import wrap

WIDTHS = st.integers(2, 30)
TEXTS = st.text(st.sampled_from("ab  昔\né漢👋-"), max_size=80)


@given(TEXTS, WIDTHS)
def test_lines_fit_and_hold_all_but_the_spaces_at_breaks(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(cell_len(text[start:end]) <= width for start, end in lines)
    kept = "".join(text[start:end] for start, end in lines)
    assert kept.replace(" ", "") == text.replace("\n", "").replace(" ", "")
    assert [start for start, _ in lines] == sorted(start for start, _ in lines)


@given(TEXTS, WIDTHS)
def test_short_words_are_not_broken(text: str, width: int) -> None:
    shown = [text[start:end] for start, end in wrap(text, width)]
    words = [word for line in shown for word in line.split()]
    if all(cell_len(word) <= width for word in text.split()):
        assert words == text.split()
