"""Regular expressions that a user types, and the bounds of a search in texts of clients.

A search that fails may take a time that doubles with each character if a repeated parenthesis is
itself repeated, and otherwise a power of the number of characters. So the first is refused, and
only the beginning of a text is searched.
"""

from __future__ import annotations

import re
from typing import Final

MAX_ID: Final = 128
"""Characters of an id that are searched."""
MAX_TEXT: Final = 1_000
"""Characters of a prompt, and of an output, that are searched."""
_LITERALS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")
"""Escaped characters, and classes."""
_REPEATED_PARENTHESIS = re.compile(r"\)[*+{]")


class ExpressionError(ValueError):
    """An invalid regular expression; `str()` is one sentence with the reason."""


def compile_expression(regex: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Compiles an expression that a user typed.

    Raises:
        ExpressionError: It is invalid, or repeats a parenthesis.
    """
    if _REPEATED_PARENTHESIS.search(_LITERALS.sub("x", regex)):
        raise ExpressionError("a parenthesis cannot be repeated, as that may take for ever")
    try:
        return re.compile(regex, flags)
    except re.error as error:
        raise ExpressionError(f"the regular expression is invalid: {error}") from error
