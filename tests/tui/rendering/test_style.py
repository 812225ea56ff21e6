"""Styled lines."""

import re

import pytest

from seqtop.tui.rendering.style import highlighted, line_width, plain
from tests.support.scripted import HOSTILE, MIXED


@pytest.mark.parametrize("text", [HOSTILE, MIXED, "plain words, plain"])
@pytest.mark.parametrize("pattern", ["plain", "o", "", "[a-z]+", "nowhere", "שלום"])
def test_marking_changes_no_cell(text: str, pattern: str) -> None:
    line = ((" ", ""), (text[:9], "dim"), (text[9:], ""))
    done = highlighted(line, [re.compile(pattern)])
    assert plain(done) == plain(line)
    assert line_width(done) == line_width(line)
    assert {ink for _, ink in done} <= {"", "dim", "match"}
    if pattern == "plain" and text.startswith("plain"):
        assert [part for part, ink in done if ink == "match"] == ["plain", "plain"]


def test_without_a_match_the_first_word_is_marked_and_no_sign_of_a_tree() -> None:
    done = highlighted((("├ child  text", ""),), [re.compile("hidden")])
    assert [part for part, ink in done if ink == "match"] == ["child"]
