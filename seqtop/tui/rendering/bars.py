"""Bars, sparklines and rows of figures as lines."""

import math
from collections.abc import Iterable, Sequence

from rich.cells import get_character_cell_size

from seqtop.text.sanitize import is_narrow, safe_text
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, line_width, merged, text_width

KV_RAMP = ("prefill-low", "prefill-mid", *["computed"] * 4, "waiting", "preempted")
"""The styles of the use of the KV cache, from an empty pool to a full one."""
SPARKS = "▁▂▃▄▅▆▇"
"""Heights of bars. Without `█`, which would touch what is in the line above."""
ELLIPSIS = "…"


def bar(width: int, total: float, parts: Iterable[tuple[float, str, str]]) -> Line:
    """Returns a thin bar of `width` cells that shows parts of a total.

    The end is exact to half a cell and is rounded down: only the whole total fills the bar.

    Args:
        width: The cells of the bar.
        total: The amount that fills the bar.
        parts: For each part its amount, its style and its glyph. Glyphs differ, so that the bar
            can be read without colours.
    """
    spans: list[StyledText] = []
    drawn = 0
    filled = 0.0
    half_open = ""
    for amount, style, glyph in parts:
        if amount > 0:
            filled += amount
        halves = int(min(filled / total, 1.0) * width * 2) if 0 < total < math.inf else 0
        cells = halves // 2
        if cells > drawn:
            spans.append((glyph * (cells - drawn), style))
            drawn = cells
        half_open = style if halves % 2 and drawn < width else ""
    if half_open:
        spans.append(("╸", half_open))
        drawn += 1
    if drawn < width:
        spans.append(("─" * (width - drawn), "track"))
    return tuple(spans)


def sparkline(values: Sequence[float], width: int, ceiling: float | None = None) -> str:
    """Returns the last `width` values as bars, scaled to `ceiling` or to the largest value.

    What is unknown (NaN) is blank.
    """
    shown = values[-width:] if width > 0 else ()
    top = ceiling or max((value for value in shown if 0 < value < math.inf), default=0.0)
    return "".join(" " if math.isnan(value) else _spark(value, top) for value in shown)


def ramp(styles: Sequence[str], height: int) -> list[str]:
    """Returns the style of each of `height` lines, the upper one first.

    Args:
        styles: The styles from the lowest load to the highest.
        height: The lines of a chart.
    """
    last = len(styles) - 1
    return [styles[round((line + 0.5) / height * last)] for line in reversed(range(height))]


def graded_style(share: float, styles: Sequence[str]) -> str:
    """Returns the style of a load from 0 to 1."""
    return styles[round(min(max(share, 0.0), 1.0) * (len(styles) - 1))]


def graded(line: Line, style: str, styles: Sequence[str]) -> Line:
    """Returns a bar whose cells of `style` have the style of their place, from calm to hot.

    Args:
        line: The bar.
        style: The style to replace.
        styles: The styles from the left end to the right one.
    """
    by_cell = _scale(styles, line_width(line))
    spans: list[StyledText] = []
    at = 0
    for text, own in line:
        if own == style:
            spans += zip(text, by_cell[at : at + len(text)], strict=True)
        else:
            spans.append((text, own))
        at += len(text)
    return merged(spans)


def graded_spark(spark: str, styles: Sequence[str]) -> Line:
    """Returns a sparkline whose bars have the style of their height, from calm to hot."""
    by_spark = dict(zip(SPARKS, _scale(styles, len(SPARKS)), strict=True))
    return merged([(glyph, by_spark.get(glyph, PLAIN)) for glyph in spark])


def _scale(styles: Sequence[str], length: int) -> list[str]:
    """Returns the styles of `length` steps, from the first style to the last one."""
    return [graded_style(step / max(length - 1, 1), styles) for step in range(length)]


def _spark(value: float, top: float) -> str:
    share = min(value / top, 1.0) if 0 < value < math.inf and top > 0 else 0.0
    return SPARKS[round(share * (len(SPARKS) - 1))]


def row(items: Iterable[tuple[int, Line]], width: int, gap: int = 2) -> Line:
    """Returns the items that fit into `width` cells, side by side.

    Args:
        items: For each item its rank and its line. Those of the highest rank are left out first.
        width: The cells of the line.
        gap: The cells between two items.
    """
    fitting = [(rank, item, line_width(item) + gap) for rank, item in items if item]
    size = sum([item[2] for item in fitting]) - gap
    while len(fitting) > 1 and size > width:
        last = max(reversed(fitting), key=lambda item: item[0])
        fitting.remove(last)
        size -= last[2]
    spans: list[StyledText] = []
    for index, (_, item, _) in enumerate(fitting):
        if index:
            spans.append((" " * gap, PLAIN))
        spans.extend(item)
    return tuple(spans)


def grid(items: Iterable[tuple[int, int, Line]], width: int, gap: int = 2) -> Line:
    """Returns the items that fit into `width` cells, each in a place of its own.

    Which items are shown, and where, depends on the width alone: an item is padded to the cells
    that it is expected to need, so that nothing moves or disappears when a figure grows.

    Args:
        items: For each item its rank, as in `row`, the cells of its place (0 for as many as it has
            now), and its line.
        width: The cells of the line.
        gap: The cells between two items.
    """
    fitting = [(rank, cells or line_width(item), item) for rank, cells, item in items if item]
    while len(fitting) > 1 and sum(cells + gap for _, cells, _ in fitting) - gap > width:
        fitting.remove(max(reversed(fitting), key=lambda item: item[0]))
    spans: list[StyledText] = []
    for _, cells, item in fitting:
        spans += [*item, (" " * (max(cells - line_width(item), 0) + gap), PLAIN)]
    return tuple(spans)


def rows(items: Iterable[Line], width: int, gap: int = 3) -> list[Line]:
    """Returns the items side by side, on as many lines of `width` cells as they need."""
    lines: list[Line] = []
    for item in items:
        if lines and line_width(lines[-1]) + gap + line_width(item) <= width:
            lines[-1] = (*lines[-1], (" " * gap, PLAIN), *item)
        else:
            lines.append(item)
    return lines


def figure(label: str, value: str) -> Line:
    """Returns a value behind its name."""
    return ((f"{label} ", "dim"), (value, "strong"))


def spread(left: Line, right: Line, width: int) -> Line:
    """Returns a line of `width` cells with `left` and `right` at its ends."""
    gap = max(width - line_width(left) - line_width(right), 1)
    return (*left, (" " * gap, PLAIN), *right)


def shortened(place: str, width: int) -> str:
    """Returns an endpoint, or a name where an engine was found, cut at its beginning.

    The ports of endpoints differ more often than the hosts, and the names of pods by their ends.
    """
    text = safe_text(place)
    return text if text_width(text) <= width else ELLIPSIS + crop_left(text, width - 1)


def crop_left(text: str, width: int) -> str:
    """Returns the end of `text` that fits into `width` cells."""
    if width <= 0:
        return ""
    if is_narrow(end := text[-width:]):
        return end
    taken = 0
    start = len(text)
    for index in range(len(text) - 1, -1, -1):
        size = get_character_cell_size(text[index])
        if taken + size > width:
            break
        taken += size
        if size:  # a combining mark stays with its character
            start = index
    return text[start:]


def tail(old: str, new: str, width: int, style: str = PLAIN, new_style: str = "delta") -> Line:
    """Returns the end of a growing text in `width` cells, its new part in the style `new_style`."""
    used = text_width(old) + text_width(new)
    if used > width:
        fitting = crop_left(old + new, max(width - 1, 0))
        new = new if len(fitting) > len(new) else fitting
        old = ELLIPSIS + fitting[: len(fitting) - len(new)]
        used = text_width(old) + text_width(new)
    spans = ((old, style), (new, new_style), (" " * (width - used), PLAIN))
    return tuple(span for span in spans if span[0])
