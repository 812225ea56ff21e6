"""The letters and the styles that tell the owners of blocks apart on a map of cells."""

import itertools
import string
from collections import Counter
from collections.abc import Iterable

from seqtop.tui.rendering.style import StyledText

LETTERS = "".join(
    letter for letter in string.ascii_uppercase + string.ascii_lowercase if letter not in "OIl"
)
"""Letters that look like no digit: `O in use` would be read as a number."""
OWNER_STYLES = tuple(f"owner-{number}" for number in range(8))
"""The styles of owners, which fill the cells. With 49 letters there are 392 different pairs."""
SELECTED = ("█", "selected")
"""The sign of the selected owner in cells that have no room for an outline."""
MAX_KNOWN = 4_000
"""The owners whose styles are kept after they have left the map."""


def owner_mark(number: int) -> StyledText:
    """Returns the letter and the style of an owner, from the number of its sequence or its tree."""
    return LETTERS[number % len(LETTERS)], OWNER_STYLES[number % len(OWNER_STYLES)]


class OwnerMarks:
    """The marks of the owners on a map, with different styles for neighbours if possible.

    The style of a new owner is that of its number, or one that fewer have if an older owner on the
    map has it. An owner keeps its style until it touches an older one of the same style. If the
    neighbours have all styles, a pattern tells it apart.
    """

    def __init__(self) -> None:
        self._styles: dict[int, int] = {}
        """The indices in `OWNER_STYLES`, by owner."""
        self._patterned: set[int] = set()

    def arrange(self, rows: Iterable[tuple[int | None, ...]]) -> bool:
        """Gives the owners on a map their styles; returns whether one of a known owner changed.

        Args:
            rows: The owner of each cell, row by row from the top; `None` for a cell without one.
        """
        neighbours: dict[int, set[int]] = {}
        for one, other in _pairs(rows):
            if one is not None and other is not None:
                neighbours.setdefault(one, set()).add(other)
                neighbours.setdefault(other, set()).add(one)
        before, patterned = self._styles, self._patterned
        if len(before) > MAX_KNOWN:
            before = {owner: before[owner] for owner in neighbours if owner in before}
        styles: dict[int, int] = {}
        used = Counter(before[owner] for owner in neighbours if owner in before)
        self._patterned = set()
        for owner in sorted(neighbours):
            near = [other for other in neighbours[owner] if other in styles]
            taken = Counter(styles[other] for other in near)
            style = before.get(owner, owner % len(OWNER_STYLES))
            is_new = owner not in before
            if taken[style] or (is_new and used[style]):
                own = style
                style = min(
                    range(len(OWNER_STYLES)),
                    key=lambda number: (taken[number], used[number], number != own),
                )
                plain = {styles[other] for other in near if other not in self._patterned}
                if style in plain:
                    self._patterned.add(owner)
            if not is_new:
                used[before[owner]] -= 1
            used[style] += 1
            styles[owner] = style
        has_changed = any(before.get(owner, style) != style for owner, style in styles.items())
        self._styles = before | styles
        return has_changed or self._patterned != patterned

    def mark(self, owner: int) -> StyledText:
        """Returns the letter and the style of an owner."""
        letter, style = owner_mark(owner)
        number = self._styles.get(owner)
        return letter, style if number is None else OWNER_STYLES[number]

    def has_pattern(self, owner: int) -> bool:
        """Returns whether a neighbour of an owner has its style, too."""
        return owner in self._patterned


def _pairs(rows: Iterable[tuple[int | None, ...]]) -> set[tuple[int | None, int | None]]:
    """Returns each owner with itself, and with those of the cells that touch its cells."""
    pairs: set[tuple[int | None, int | None]] = set()
    above: tuple[int | None, ...] = ()
    for row in rows:
        pairs.update(zip(row, row, strict=True))
        pairs.update(itertools.pairwise(row))
        pairs.update(zip(above, row, strict=False))
        above = row
    return pairs
