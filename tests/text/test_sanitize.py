"""Nothing that leaves `safe_text` moves, hides or recolours anything."""

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, get_character_cell_size

from seqtop.text.invisible import DEFAULT_IGNORABLE, FORMAT, is_invisible
from seqtop.text.sanitize import (
    _ODD,
    MAX_MARKS,
    NEWLINE_MARK,
    _drawn,
    is_narrow,
    safe_json,
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
        ("\u202egnp.exe\u202c", r"\u202egnp.exe\u202c"),
        ("\u200fשלם", r"\u200fשלם"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("a\u034f\u3164b\U000e0041", r"a\u034f\u3164b\U000e0041"),
        ("\ufff9text\ufffanote\ufffb", r"\ufff9text\ufffanote\ufffb"),
        ("👨\u200d👩", "👨👩"),
        ("❤\ufe0f\u200d🔥", "❤🔥"),
        ("❤\ufe0f\ufe0f", r"❤\ufe0f"),
        ("ж\u200d\u200d", r"ж\u200d"),
        ("می\u200cخو", "میخو"),
        ("葛\U000e0100", "葛"),
        ("req-1\u200d", r"req-1\u200d"),
        ("1\ufe0f\u20e3 one", "1\u20e3 one"),
        ("1\ufe0f one", r"1\ufe0f one"),
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


INVISIBLE = {
    chr(code) for first, last in DEFAULT_IGNORABLE + FORMAT for code in range(first, last + 1)
}


def is_format(character: str) -> bool:
    return unicodedata.category(character) == "Cf"


def test_invisible_characters_are_those_of_unicode() -> None:
    """They are all format characters that this Python knows, and others without a shape."""
    assert sum(last - first + 1 for first, last in DEFAULT_IGNORABLE) == 4174
    assert all(map(is_invisible, INVISIBLE))
    formats = {character for character in map(chr, range(0x110000)) if is_format(character)}
    assert formats <= INVISIBLE
    kinds = {unicodedata.category(character) for character in INVISIBLE - formats}
    assert kinds <= {"Cn", "Lo", "Mn"}, "reserved, fillers, and selectors of forms"


def test_every_character_is_shown_or_escaped() -> None:
    """None of the 1,114,112 code points changes how a name looks without being seen."""
    lines = {0x0A, 0x2028, 0x2029}
    codes = [code for code in range(0x110000) if code not in lines]
    shown = safe_text("".join(f"a{chr(code)}b\n" for code in codes), newline="\n").split("\n")
    assert len(shown) == len(codes) + 1
    of_code = dict(zip(codes, shown, strict=False))
    for code in {*map(ord, INVISIBLE)} - lines:
        assert of_code[code] in (rf"a\u{code:04x}b", rf"a\U{code:08x}b")
    skin_tones = range(0x1F3FB, 0x1F400)
    assert {code for code, safe in of_code.items() if len(safe) <= 2} <= {*skin_tones}
    assert not {*"".join(shown)} & INVISIBLE
    assert "".join(shown).isprintable()
    assert {safe_text(f"a{chr(code)}b") for code in lines} == {"a↵b"}


def test_json_of_every_character_is_visible_and_has_the_same_value() -> None:
    text = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF)
    document = safe_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(document) == text
    assert not {*document} & INVISIBLE
    assert not {*"\x7f\x85\x9b\u2028\u2029"} & {*document}
    assert r"\udb40\udc41" in document


def test_line_breaks_can_stay() -> None:
    assert safe_text("a\r\nb\u2029c", newline="\n") == "a\nb\nc"


def test_the_scene_is_safe() -> None:
    assert safe_text(HOSTILE + MIXED).isprintable()


def test_copied_text_has_no_control_characters() -> None:
    hostile = "a\x1b[201~\r\nrm\x00\x7f\x9b\tb\rc"
    assert without_controls(hostile) == "a␛[201~↵rm␀␡\N{REPLACEMENT CHARACTER}    b␍c"
    assert without_controls(hostile, kept="\n\t") == "a␛[201~\nrm␀␡\N{REPLACEMENT CHARACTER}\tb␍c"
    assert without_controls("Ünïcode 😀\u200d👩") == "Ünïcode 😀\u200d👩"
