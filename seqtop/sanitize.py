"""Text from the wire, made safe to draw.

A prompt or an output may hold anything: an escape sequence that writes the clipboard, an
override that mirrors the rest of the line, ten thousand combining marks on one letter, an emoji
that half the terminals draw wider than the other half. What leaves `safe_text` holds none of
that, and takes exactly `rich.cells.cell_len` cells in any terminal.
"""

import re
import unicodedata
from functools import lru_cache

from rich.cells import get_character_cell_size

NEWLINE_MARK = "↵"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_MARKS = 3
"""Zero-width marks kept on one character; more only serve to paint over other lines."""

MAX_LINE = 2_000
"""Characters of a line that are looked at; no terminal is that wide."""

_NARROW_ONES = " -\u02ff\u0370-\u0482\u048a-\u058f\u2010-\u2027\u2030-\u205e\u2500-\u259f"
"""Latin, Greek, Cyrillic and Armenian without their combining marks; punctuation, lines, bars."""
_ORDINARY = (
    f"{_NARROW_ONES}\u05d0-\u05ea\u0620-\u064a\u1e00-\u1fff\u20a0-\u20c0\u2100-\u2bff\u3001-\u3029"
    "\u3041-\u3096\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff60"
    "\U0001f300-\U0001f3fa\U0001f400-\U0001f5ff"
)
"""What nearly all text is made of and is drawn as it is, as far as it can be printed at all."""
_NARROW = re.compile(f"[{_NARROW_ONES}]*")
_ODD = re.compile(f"[^{_ORDINARY}\n]+")
_DISTURBING = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_REGIONAL_INDICATOR_A = 0x1F1E6


def safe_text(text: str, *, newline: str = NEWLINE_MARK) -> str:
    """`text` with everything that could move, hide or recolour made visible or dropped.

    Controls become their pictures (ESC is shown as ␛), bidirectional overrides and characters
    of unknown width become U+FFFD, invisible formatting and emoji joiners go. Line breaks
    become `newline`.
    """
    bare = text.replace("\n", "")
    if not bare.isprintable():
        return _drawn(text.replace("\r\n", "\n"), newline)
    if not bare.isascii():
        text = _ODD.sub(lambda odd: _drawn(odd[0], newline, bool(odd.start()) * MAX_MARKS), text)
    return text.replace("\n", newline)


def _drawn(text: str, newline: str, room: int = 0) -> str:
    """`text`, character by character; there is `room` for so many marks on what is before it."""
    drawn: list[str] = []
    for character in text:
        shown, is_mark = _shown(character)
        if is_mark:
            if room:
                drawn.append(shown)
                room -= 1
        elif shown:
            drawn.append(newline if shown == "\n" else shown)
            room = MAX_MARKS
    return "".join(drawn)


def is_narrow(text: str) -> bool:
    """Whether `text`, which is safe, is known to be of characters that take a cell each."""
    return text.isascii() or _NARROW.fullmatch(text) is not None


def safe_line(text: str) -> str:
    """`text` for one line: as `safe_text`, but of a very long one only the beginning is looked at.

    So what is drawn anew with each frame costs no more than its line, whatever an engine sends.
    """
    return safe_text(text[:MAX_LINE])


def safe_json(document: str) -> str:
    """A JSON document with all that could disturb a terminal written as escapes.

    It says the same to whoever parses it: such characters only occur within its strings.
    """
    return _DISTURBING.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


@lru_cache(maxsize=8192)
def _shown(character: str) -> tuple[str, bool]:
    """What stands for `character`, and whether it is a mark on the one before it."""
    code = ord(character)
    if character == "\t":
        return "    ", False
    if code < 0x20 or code == 0x7F:
        if character == "\n":
            return "\n", False
        return chr(0x2421 if code == 0x7F else 0x2400 + code), False
    if _REGIONAL_INDICATOR_A <= code < _REGIONAL_INDICATOR_A + 26:
        return chr(ord("A") + code - _REGIONAL_INDICATOR_A), False
    if 0x1F3FB <= code <= 0x1F3FF:  # skin tones: drawn by some terminals, joined by others
        return "", False
    if 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF:  # variation selectors
        return "", False
    category = unicodedata.category(character)
    if category in {"Zl", "Zp"}:
        return "\n", False
    if category in {"Cc", "Cs", "Co", "Cn"} or character in _BIDI_CONTROLS:
        return REPLACEMENT, False
    if category == "Cf":
        return "", False
    width = get_character_cell_size(character)
    if category == "Zs":
        return " " * max(width, 1), False
    return character, width == 0
