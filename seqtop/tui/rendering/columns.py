"""Columns of a list: where each stands, and the line of their titles."""

from collections.abc import Iterable
from typing import NamedTuple

from seqtop.tui.rendering.style import PLAIN, Line


class Slot(NamedTuple):
    """A column's place: slots of the highest rank go first when there is no room for all."""

    key: str
    title: str
    width: int
    rank: int
    right: bool = True
    """Whether the column is aligned right."""


def header(slots: Iterable[Slot], gap: str = " ") -> Line:
    """The line of titles, `gap` between any two."""
    titles = (
        slot.title.rjust(slot.width) if slot.right else slot.title.ljust(slot.width)
        for slot in slots
    )
    return ((gap.join(titles), PLAIN),)
