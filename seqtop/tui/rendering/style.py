"""Lines of text in named styles: made by pure functions, drawn by a `LineView`.

A line is a tuple of spans. A span is a text and the name of a style. Styles are component classes
of the screen, so the stylesheet and the theme define their look. (As component classes of each
widget, they would be computed again at every change of focus.)
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size

StyledText: TypeAlias = tuple[str, str]
"""A text and the name of its style."""
Line: TypeAlias = tuple[StyledText, ...]

PLAIN = ""
STYLES = frozenset(
    {
        "dim", "strong", "delta", "title", "accent", "alert", "track", "computed", "cached",
        "shared", "running", "prefill", "waiting", "preempted", "swapped", "finished", "aborted",
        "badge-live", "badge-paused", "badge-wait", "badge-alert", "cursor", "header", "tab",
        "marked", "match", "unsure", "unlikely", "link", "key", "high", "very-high",
        "running-low", "running-mid", "prefill-low", "prefill-mid", "waiting-low",
        "owner-0", "owner-1", "owner-2", "owner-3", "owner-4", "owner-5",
        "owner-0-edge", "owner-1-edge", "owner-2-edge", "owner-3-edge", "owner-4-edge",
        "owner-5-edge", "owner-0-fill", "owner-1-fill", "owner-2-fill", "owner-3-fill",
        "owner-4-fill", "owner-5-fill", "owner-0-fill-edge", "owner-1-fill-edge",
        "owner-2-fill-edge", "owner-3-fill-edge", "owner-4-fill-edge", "owner-5-fill-edge",
        "owner-6", "owner-7", "owner-6-edge", "owner-7-edge", "owner-6-fill", "owner-7-fill",
        "owner-6-fill-edge", "owner-7-fill-edge",
        "selected", "selected-shared", "selected-edge", "unheld", "unheld-edge",
        "unheld-cached", "unheld-cached-edge",
    }
)  # fmt: skip
STYLE_CLASSES = {f"style--{name}" for name in STYLES}
"""The component classes that a screen needs for the `LineView`s on it."""


def text_width(text: str) -> int:
    """Returns the width of a text in cells."""
    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def line_width(line: Line) -> int:
    """Returns the width of a line in cells."""
    # `text_width` is written out here: this is called for some hundred spans of each frame.
    return sum(
        [len(text) if text.isascii() and text.isprintable() else cell_len(text) for text, _ in line]
    )


def plain(line: Line) -> str:
    """Returns the text of a line without styles."""
    return "".join(text for text, _ in line)


def fitted(line: Line, width: int) -> Line:
    """Returns `line` in exactly `width` cells: padded, or cut with an ellipsis."""
    size = line_width(line)
    if size <= width:
        return line if size == width else (*line, (" " * (width - size), PLAIN))
    fitting: list[StyledText] = []
    room = max(width - 1, 0)
    for text, style in line:
        size = text_width(text)
        if size > room:
            fitting.append((set_cell_size(text, room) + "…", style))
            break
        fitting.append((text, style))
        room -= size
    return tuple(fitting) if width > 0 else ()


def merged(pieces: Sequence[StyledText]) -> Line:
    """Returns the texts as a line, with neighbours of one style joined."""
    return tuple(
        ("".join(text for text, _ in group), style)
        for style, group in groupby(pieces, key=lambda piece: piece[1])
    )


def highlighted(line: Line, patterns: Iterable[re.Pattern[str]]) -> Line:
    """Returns `line` with all matches of the patterns in the style `match`.

    The first word is highlighted if nothing matches (the match may be in a hidden column). The
    signs of a tree before a name are none.
    """
    text = plain(line)
    ranges = sorted(match.span() for pattern in patterns for match in pattern.finditer(text))
    ranges = [(start, end) for start, end in ranges if start < end]
    if not ranges and (word := re.search(r"\w\S*", text) or re.search(r"\S+", text)):
        ranges = [word.span()]
    spans: list[StyledText] = []
    at = 0
    for part, style in line:
        end = at + len(part)
        for start, stop in ranges:
            if stop <= at or start >= end:
                continue
            if start > at:
                spans.append((text[at:start], style))
            at = min(stop, end)
            spans.append((text[max(start, end - len(part)) : at], "match"))
        if at < end:
            spans.append((text[at:end], style))
        at = end
    return tuple(span for span in spans if span[0])
