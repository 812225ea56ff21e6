"""Makes untrusted text safe to draw on a terminal.

A prompt or an output may contain an escape sequence that writes the clipboard, a bidirectional
override that mirrors the rest of the line, letters that nobody sees, ten thousand combining marks
on one letter, or an emoji whose width depends on the terminal. The result of `safe_text` contains
none of these and takes exactly `rich.cells.cell_len` cells in any terminal.
"""

import re
import unicodedata
from functools import lru_cache

import msgspec
from rich.cells import get_character_cell_size

from seqtop.text.invisible import escaped, escaped_in_json, is_invisible

NEWLINE_MARK = "↵"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_MARKS = 3
"""The most zero-width marks on one character. More would be drawn over other lines."""

MAX_LINE = 2_000
"""Characters of a line that are processed. No terminal is wider."""

_NARROW_CHARACTERS = " -\u02ff\u0370-\u0482\u048a-\u058f\u2010-\u2027\u2030-\u205e\u2500-\u259f"
"""Latin, Greek, Cyrillic and Armenian without their combining marks; punctuation, lines, bars."""
_ORDINARY = (
    f"{_NARROW_CHARACTERS}\u05d0-\u05ea\u0620-\u064a\u1e00-\u1fff\u20a0-\u20c0\u2100-\u2bff\u3001-\u3029"
    "\u3041-\u3096\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff60"
    "\U0001f300-\U0001f3fa\U0001f400-\U0001f5ff"
)
"""The characters of ordinary text, which are drawn unchanged if they are printable."""
_NARROW = re.compile(f"[{_NARROW_CHARACTERS}]*")
_ODD = f"[^{_ORDINARY}\n]+"
"""Compiled at its first use, which takes 2 ms: no start needs it."""
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
_JOINERS = "\u200c\u200d"
_SELECTORS_AND_JOINERS = (
    "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))) + _JOINERS
)
"""A variation selector, then a joiner, may follow a character that is not ASCII, each
once, to change its form. Elsewhere, they would only hide something."""
_EMOJI_STYLE, _KEYCAP = "\ufe0f", "\u20e3"
"""A digit in a key, as in a numbered list, is followed by these two."""
_REGIONAL_INDICATOR_A = 0x1F1E6


def safe_text(text: str, *, newline: str = NEWLINE_MARK) -> str:
    """Returns `text` without characters that move, hide or recolour other text.

    Controls become their pictures (ESC becomes ␛), invisible characters their escapes, characters
    of unknown width U+FFFD. Joiners and variation selectors that change the form of the character
    before them are dropped, and so are skin tones. Line breaks become `newline`.
    """
    if not text.replace("\n", "").isprintable():
        return _drawn(text.replace("\r\n", "\n"), newline)
    if not text.isascii():
        text = re.sub(
            _ODD,
            lambda odd: _drawn(odd[0], newline, text[max(odd.start() - 1, 0) : odd.start()]),
            text,
        )
    return text.replace("\n", newline)


def _drawn(text: str, newline: str, before: str = "") -> str:
    """Makes `text` safe, which follows the character `before`, if there is one."""
    drawn: list[str] = []
    room = MAX_MARKS if before else 0
    _, _, form = _shown(before) if before else ("", False, "")
    for index, character in enumerate(text):
        if character in form or (
            character == _EMOJI_STYLE and text[index + 1 : index + 2] == _KEYCAP
        ):
            form = "" if character in _JOINERS else _JOINERS
            continue
        shown, is_mark, form = _shown(character)
        if is_mark:
            if room:
                drawn.append(shown)
                room -= 1
        elif shown:
            drawn.append(newline if shown == "\n" else shown)
            room = MAX_MARKS
    return "".join(drawn)


def is_narrow(text: str) -> bool:
    """Returns whether each character of the safe `text` is known to take one cell."""
    return text.isascii() or _NARROW.fullmatch(text) is not None


def safe_line(text: str) -> str:
    """Returns the first `MAX_LINE` characters of `text`, made safe.

    The limit bounds the time that a frame takes for a very long text.
    """
    return safe_text(text[:MAX_LINE])


def without_controls(text: str, *, kept: str = "") -> str:
    """Returns `text` with pictures of its control characters (ESC becomes ␛), but for `kept`.

    The result can be pasted into a terminal: an escape sequence cannot end bracketed paste.
    """
    return _CONTROLS.sub(
        lambda match: match[0] if match[0] in kept else _drawn(match[0], NEWLINE_MARK),
        text.replace("\r\n", "\n"),
    )


def safe_json(document: str) -> str:
    """Returns a JSON document with characters that affect a terminal, or hide, written as escapes.

    It parses to the same value, as such characters occur in JSON strings only.
    """
    return escaped_in_json(document)


def indented_json(value: object) -> str:
    """Returns a value as indented JSON that is safe to print. Non-finite numbers become `null`."""
    return safe_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


@lru_cache(maxsize=8192)
def _shown(character: str) -> tuple[str, bool, str]:
    """Returns the safe form of `character`, if it is a mark, and what may follow to change it."""
    if is_invisible(character):
        return escaped(character), False, ""
    shown, is_mark = _visible(character)
    return shown, is_mark, "" if character.isascii() else _SELECTORS_AND_JOINERS


def _visible(character: str) -> tuple[str, bool]:
    """Returns the safe form of a character, and whether it is a mark on the one before it."""
    code = ord(character)
    if character == "\t":
        return "    ", False
    if code < 0x20 or code == 0x7F:
        if character == "\n":
            return "\n", False
        return chr(0x2421 if code == 0x7F else 0x2400 + code), False
    if _REGIONAL_INDICATOR_A <= code < _REGIONAL_INDICATOR_A + 26:
        return chr(ord("A") + code - _REGIONAL_INDICATOR_A), False
    if 0x1F3FB <= code <= 0x1F3FF:  # skin tones: separate in some terminals, joined in others
        return "", False
    category = unicodedata.category(character)
    if category in {"Zl", "Zp"}:
        return "\n", False
    if category == "Cf":  # of a newer Unicode than that of the table
        return escaped(character), False
    if category in {"Cc", "Cs", "Co", "Cn"}:
        return REPLACEMENT, False
    width = get_character_cell_size(character)
    if category == "Zs":
        return " " * max(width, 1), False
    return character, width == 0
