"""Area charts of several lines in braille dots; the signs of the parts of the time."""

import math
from collections.abc import Sequence

from seqtop.tui.rendering.style import PLAIN, StyledText

DOTS = 4
"""The dots of a cell above each other."""
_LEFT, _RIGHT = (0x00, 0x40, 0x44, 0x46, 0x47), (0x00, 0x80, 0xA0, 0xB0, 0xB8)
_CELLS = [[chr(0x2800 + left + right) for right in _RIGHT] for left in _LEFT]
"""By the heights of the left and the right column in dots: the cell that is filled so far."""
_CELLS[0][0] = " "


def area_chart(values: Sequence[float | None], height: int, top: float) -> list[str]:
    """Returns `height` lines, the upper one first, with a cell for each two values.

    A value above zero has at least one dot. `None` is blank.

    Args:
        values: The values from left to right, two for each cell.
        height: The lines of the chart.
        top: The value that fills the height.
    """
    full = height * DOTS
    levels = column_heights(values, height, top)
    pairs = list(zip(levels[::2], levels[1::2], strict=True))
    lines: list[str] = []
    for below in range(full - DOTS, -1, -DOTS):
        # By the height of a column, the part of it in this line: looked up for each cell.
        part = [*[0] * below, *range(DOTS), *[DOTS] * (full - below - DOTS + 1)]
        lines.append("".join([_CELLS[part[left]][part[right]] for left, right in pairs]))
    return lines


def column_heights(values: Sequence[float | None], height: int, top: float) -> list[int]:
    """Returns the heights of columns in dots."""
    full = height * DOTS
    if not top > 0:
        return [0] * len(values)
    scale = full / top
    return [
        0 if value is None or not value > 0 else full if value >= top else round(value * scale) or 1
        for value in values
    ]


def stacked_chart(
    columns: Sequence[Sequence[float]], signs: Sequence[StyledText], height: int
) -> list[list[StyledText]]:
    """Returns `height` lines of cells, the upper one first, with shares stacked from below.

    Each cell shows the part that takes most of it; a cell that is rather empty is blank.

    Args:
        columns: For each column the shares of the parts, whose sum is at most 1.
        signs: The glyph and the style of each part.
        height: The lines of the chart.
    """
    lines: list[list[StyledText]] = [[] for _ in range(height)]
    for shares in columns:
        for line, sign in zip(reversed(lines), stacked_cells(shares, signs, height), strict=True):
            line.append(sign)
    return lines


def stacked_cells(
    shares: Sequence[float], signs: Sequence[StyledText], length: int
) -> list[StyledText]:
    """Returns the cells of one column, the lowest first, or of one bar, the leftmost first."""
    ends: list[float] = []
    total = 0.0
    for share in shares:
        total += share * length
        ends.append(total)
    cells: list[StyledText] = []
    for cell in range(length):
        best, most = (" ", PLAIN), max(cell + 1 - max(total, cell), 0.0)
        start = 0.0
        for end, sign in zip(ends, signs, strict=True):
            taken = min(end, cell + 1) - max(start, cell)
            if taken > most:
                best, most = sign, taken
            start = end
        cells.append(best)
    return cells


def round_top(value: float) -> float:
    """Returns the end of a scale: 1, 1.5, 2, 3, 5 or 7 times a power of ten, at least `value`."""
    if not 0 < value < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        (factor * power for factor in (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if factor * power >= value),
        10.0 * power,
    )


TIME_SIGNS: dict[str, StyledText] = {
    "scheduler": ("▒", "waiting"),
    "forward": ("⣿", "running"),
    "execute": ("▓", "computed"),
    "rest": ("░", "cached"),
    "host": ("·", "preempted"),
    "paced": (" ", PLAIN),
    "idle": (" ", PLAIN),
}
"""The sign of each of `seqtop.state.step_costs.TIME_PARTS`."""
TIME_WORDS = {
    "scheduler": "choosing the batch of a step",
    "forward": "the forward pass of the model",
    "ex-fwd": "executing the model outside of the forward pass",
    "rest": "processing the outputs, and what else is in a step",
    "host": "between two steps, while requests are unfinished",
    "paced": "between two steps, waiting on purpose (--pace)",
    "idle": "between two steps, without a request that could run",
}
"""The meanings of the short names of these parts."""
_PART_NAMES = {
    "rest": "rest of the step",
    "host": "host between steps",
    "paced": "paced on purpose",
}


def part_name(part: str, *, has_forward: bool) -> str:
    """Returns the name of a part of the time.

    Args:
        part: One of `seqtop.state.step_costs.TIME_PARTS`.
        has_forward: Whether the engine reports the time of the forward pass apart.
    """
    if part == "execute" and has_forward:
        return "execute without forward"
    return _PART_NAMES.get(part, part)
