"""Texts broken into lines of a width."""

import re

from rich.cells import cell_len, get_character_cell_size

from seqtop.tui.rendering.style import Line

_WORD = re.compile(r"\n|[^\S\n]+|[^\s]+")


def wrap(text: str, width: int, start: int = 0) -> list[tuple[int, int]]:
    """Returns the start and the end of each line of `text`, at most `width` cells per line.

    Breaks at spaces, and inside a word only if the word alone is too long. Spaces at a break that
    do not fit are left out. The last line may be empty.

    Args:
        text: The text.
        width: The cells of a line.
        start: The index in `text` at which the first line begins.
    """
    width = max(width, 2)  # one wide character
    lines: list[tuple[int, int]] = []
    line_start = end = start
    used = 0
    for match in _WORD.finditer(text, start):
        word, word_start = match[0], match.start()
        if word == "\n":
            lines.append((line_start, end))
            line_start = end = match.end()
            used = 0
            continue
        size = cell_len(word)
        if used + size <= width:
            used += size
            end = match.end()
            continue
        if word.isspace():  # the next word, if any, begins a line
            used = width
            continue
        if used:
            lines.append((line_start, end))
            line_start, used = word_start, 0
        for index in range(word_start, match.end()):
            size = get_character_cell_size(text[index])
            if used + size > width:
                lines.append((line_start, index))
                line_start, used = index, 0
            used += size
        end = match.end()
    lines.append((line_start, end))
    return lines


def wrapped(text: str, style: str, width: int) -> list[Line]:
    """Returns a text in one style as lines of at most `width` cells."""
    return [((text[start:end], style),) for start, end in wrap(text, width)]


def centred(text: str, width: int, height: int) -> list[Line]:
    """Returns a hint as the lines of an empty view of `width` and `height` cells."""
    lines = [((text[start:end].center(width), "dim"),) for start, end in wrap(text, width - 4)]
    return [*[()] * max((height - len(lines)) // 2, 0), *lines]
