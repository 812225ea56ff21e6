"""A replacement for a method of Textual's strips, which makes a strip refer to itself.

`Strip.divide` returns the strip itself if nothing is cut off, and caches the list with it. Nearly
every strip that was drawn once is then part of a cycle: 140 a second in a demo. Only the garbage
collector removes them, and those that were on the screen while it ran stay until a full collection:
1 kB for each step of an engine, and most of the time in which the collector stops the app.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.strip import Strip

_divide = Strip.divide


def divide(self: Strip, cuts: Iterable[int]) -> Sequence[Strip]:
    """Divides a strip as `Strip.divide` does; caches no list of the whole strip alone.

    Args:
        self: The strip.
        cuts: The columns at which parts end; those beyond the end are left out.
    """
    cuts = [cut for cut in cuts if cut <= self.cell_length]
    return [self] if cuts == [self.cell_length] else _divide(self, cuts)


def install() -> None:
    """Makes Textual divide strips by `divide`, in all apps of this process."""
    Strip.divide = divide  # type: ignore[method-assign]
