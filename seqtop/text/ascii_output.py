"""ASCII forms of characters that a terminal or a pipe does not have.

In a locale without UTF-8, Python would end a command with an error, or write the number of a
character in its place. An ASCII form takes as many cells as its character, so that tables and
screens stay aligned.
"""

import codecs
import io
import unicodedata
from functools import lru_cache
from typing import TextIO

from rich.cells import get_character_cell_size

_ERROR_HANDLER = "seqtop.ascii"

_SIGNS = {
    "…": "~", "·": ".", "•": "*", "–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"',
    "°": "'", "µ": "u", "μ": "u", "×": "x", "≠": "!", "≤": "<", "≥": ">", "≡": "=", "∞": "*",
    "‖": "|", "←": "<", "→": ">", "↑": "^", "↓": "v", "⇡": "^", "⇣": "v", "⇄": "%", "↵": "$",
    "↺": "@", "↻": "@", "∅": "/", "⊘": "/", "⌘": "#", "⏎": "$", "⌫": "<",
    "■": "#", "□": "o", "▲": "^", "▼": "v", "▷": ">", "▸": ">", "▾": "v", "○": "o", "◌": "o",
    "◐": "o", "●": "*", "✓": "+", "✗": "x",
    "▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=", "▆": "+", "▇": "*", "█": "#",
    "░": ":", "▒": "~", "▓": "&", "▚": "%", "▔": "-", "▀": "-", "▌": ">", "━": "=", "═": "+",
}  # fmt: skip
"""Forms of the signs on the screens. In the block map and in a bar, no two signs have one form."""


def replace_unencodable(*streams: TextIO) -> None:
    """Makes `streams` write the ASCII form of characters that their encoding does not have."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and not _is_unicode(stream.encoding):
            codecs.register_error(_ERROR_HANDLER, _replace)
            stream.reconfigure(errors=_ERROR_HANDLER)


def use_ascii(stream: TextIO) -> None:
    """Makes `stream` write the ASCII form of every character that is not ASCII."""
    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error(_ERROR_HANDLER, _replace)
        stream.reconfigure(encoding="ascii", errors=_ERROR_HANDLER)


def ascii_form(text: str) -> str:
    """Returns `text` in ASCII, with as many cells as before. What has no form becomes `?`."""
    return "".join(map(_form, text))


def _is_unicode(encoding: str) -> bool:
    return codecs.lookup(encoding).name.startswith("utf")


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Handles errors of encoding, as `codecs.register_error` describes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return ascii_form(error.object[error.start : error.end]), error.end


@lru_cache(maxsize=8192)
def _form(character: str) -> str:
    if character.isascii():
        return character
    if form := _SIGNS.get(character):
        return form
    if "\u2500" <= character <= "\u257f":
        return _line(unicodedata.name(character))
    if "\u2800" <= character <= "\u28ff":  # braille: by the number of dots
        return " ..::++##"[(ord(character) - 0x2800).bit_count()]
    if "\u2580" <= character <= "\u259f":  # blocks
        return "#"
    width = get_character_cell_size(character)
    letters = "".join(filter(str.isascii, unicodedata.normalize("NFKD", character)))
    return letters if len(letters) == width else "?" * width


def _line(name: str) -> str:
    """Returns the form of a character for drawing lines, by its name in Unicode."""
    is_horizontal = any(word in name for word in ("HORIZONTAL", "LEFT", "RIGHT"))
    is_vertical = any(word in name for word in ("VERTICAL", "UP", "DOWN"))
    return "+" if is_horizontal and is_vertical else "-" if is_horizontal else "|"
