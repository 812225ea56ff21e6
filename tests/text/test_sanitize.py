"""Nothing that leaves `safe_text` moves, hides or recolours anything."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, get_character_cell_size

from seqtop.text.sanitize import (
    _ODD,
    MAX_MARKS,
    NEWLINE_MARK,
    _drawn,
    is_narrow,
    safe_text,
    without_controls,
)
from tests.support.scripted import HOSTILE, MIXED

NASTY = st.text(
    st.characters()
    | st.sampled_from("\x1b\x9b\x07\r\n\t\x00\x7f\u202e\u2066\u200d\ufe0f\u0301\u2028\ud800👨👩🇩🇪")
)


@given(NASTY)
def test_nothing_is_left_that_is_not_drawn(text: str) -> None:
    safe = safe_text(text)
    for character in safe:
        assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert safe.isprintable()
    safe.encode()  # no lone surrogates


@given(NASTY)
def test_ordinary_text_comes_out_the_same(text: str) -> None:
    assert safe_text(text) == _drawn(text.replace("\r\n", "\n"), NEWLINE_MARK)


def test_ordinary_characters_come_out_as_they_do_alone() -> None:
    printable = "".join(filter(str.isprintable, map(chr, range(0x20000))))
    ordinary = re.sub(_ODD, "", printable)
    assert safe_text(ordinary) == ordinary == _drawn(ordinary, NEWLINE_MARK)
    assert len(ordinary) > 40_000
    for character in filter(is_narrow, ordinary):
        assert get_character_cell_size(character) == 1, hex(ord(character))


@given(NASTY)
def test_width_is_the_sum_of_the_characters_widths(text: str) -> None:
    safe = safe_text(text)
    assert cell_len(safe) == sum(map(get_character_cell_size, safe))


@given(NASTY)
def test_marks_need_something_to_stand_on_and_are_few(text: str) -> None:
    run = MAX_MARKS
    for character in safe_text(text):
        run = run + 1 if get_character_cell_size(character) == 0 else 0
        assert run <= MAX_MARKS


@given(st.text(st.characters(max_codepoint=0x7E, min_codepoint=0x20)))
def test_plain_text_stays(text: str) -> None:
    assert safe_text(text) == text


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x9b2J", "\ufffd2J"),
        ("a\x7fb\x00", "a␡b␀"),
        ("one\r\ntwo\nthree\rfour", "one↵two↵three␍four"),
        ("a\u2028b", "a↵b"),
        ("a\tb", "a    b"),
        ("\u202egnp.exe\u202c", "\ufffdgnp.exe\ufffd"),
        ("\u200fשלם", "שלם"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("👨\u200d👩", "👨👩"),
        ("❤\ufe0f", "❤"),
        ("👋🏽", "👋"),
        ("🇩🇪", "DE"),
        ("e\u0301" + "\u0301" * 9, "e" + "\u0301" * 3),
        ("\u0301lost", "lost"),
        ("昔々", "昔々"),
        ("full\u3000width", "full  width"),
        ("\ud800", "\ufffd"),
    ],
)
def test_examples(text: str, safe: str) -> None:
    assert safe_text(text) == safe


def test_line_breaks_can_stay() -> None:
    assert safe_text("a\r\nb\u2029c", newline="\n") == "a\nb\nc"


def test_the_scene_is_safe() -> None:
    assert safe_text(HOSTILE + MIXED).isprintable()


def test_copied_text_has_no_control_characters() -> None:
    hostile = "a\x1b[201~\r\nrm\x00\x7f\x9b\tb\rc"
    assert without_controls(hostile) == "a␛[201~↵rm␀␡\N{REPLACEMENT CHARACTER}    b␍c"
    assert without_controls(hostile, kept="\n\t") == "a␛[201~\nrm␀␡\N{REPLACEMENT CHARACTER}\tb␍c"
    assert without_controls("Ünïcode 😀\u200d👩") == "Ünïcode 😀\u200d👩"
