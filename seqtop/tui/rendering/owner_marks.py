"""The letters and the styles that tell the owners of blocks apart on a map of cells."""

import string

from seqtop.tui.rendering.style import StyledText

LETTERS = string.ascii_uppercase + string.ascii_lowercase
OWNER_STYLES = tuple(f"owner-{number}" for number in range(8))
"""The styles of owners, which fill the cells. With 52 letters there are 104 different pairs."""
SELECTED = ("█", "selected")
"""The sign of the selected owner."""


def owner_mark(number: int) -> StyledText:
    """Returns the letter and the style of an owner, from the number of its sequence or its tree."""
    return LETTERS[number % len(LETTERS)], OWNER_STYLES[number % len(OWNER_STYLES)]
