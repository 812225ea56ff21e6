"""Characters that draw nothing, so that a text with them looks like another one without them.

They are the code points that Unicode calls default ignorable (joiners, fillers, tags, variation
selectors, bidirectional controls, and code points that are reserved for more of them) and the other
format characters, such as the marks of interlinear annotations.
"""

from __future__ import annotations

import re
from bisect import bisect
from typing import Final

UNICODE_VERSION: Final = "17.0"
"""The version of Unicode from which the tables are."""
DEFAULT_IGNORABLE: Final = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5),
    (0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
"""The first and the last code points of the runs of Default_Ignorable_Code_Point, from Unicode's
`DerivedCoreProperties.txt`."""
FORMAT: Final = (
    (0x0600, 0x0605), (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891), (0x08E2, 0x08E2),
    (0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F),
)  # fmt: skip
"""Those of the other characters of the category Cf, from `UnicodeData.txt`."""
_RANGES: Final = sorted(DEFAULT_IGNORABLE + FORMAT)
_FIRST: Final = [first for first, _ in _RANGES]
_LAST: Final = [last for _, last in _RANGES]
_IN_JSON: Final = "".join(
    ("[\x7f-\x9f\u2028\u2029", *(f"{chr(first)}-{chr(last)}" for first, last in _RANGES), "]")
)
"""Compiled at its first use, which no start needs."""


def is_invisible(character: str) -> bool:
    """Returns whether a character draws nothing."""
    code = ord(character)
    index = bisect(_FIRST, code) - 1
    return index >= 0 and code <= _LAST[index]


def escaped(character: str) -> str:
    r"""Returns a character as in Python's source: `\u200b`, `\U000e0041`."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escaped_in_json(document: str) -> str:
    """Returns a JSON document with its invisible characters, controls and separators as escapes."""
    return re.sub(_IN_JSON, lambda match: _json_escape(match[0]), document)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[index : index + 2].hex()}" for index in range(0, len(units), 2))
