"""Lines that are painted once, and drawn from what was painted for as long as they look the same.

Textual would style each line of a widget anew for every frame it is in; rows without a border need
none of that. What a frame costs is what looks different in it, and a constant for each line.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from textual.geometry import Region
from textual.strip import Strip

from seqtop.tui.ink import PLAIN, Inked, Line

Look: TypeAlias = tuple[str, Line]
"""All that decides how a line is drawn: the mark of the cursor, if it is there, and its text."""


class Painted(Inked):
    """A subclass says how the lines in sight look (`looks`)."""

    MARGIN = 0
    """Cells on the left of each line, for the cursor's mark."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 (Textual's own name)
        super().__init__(id=id)
        self.lines_rendered = 0
        """How many lines have been painted; tests hold it down."""
        self._drawn: dict[int, Look] = {}
        self._painted: dict[Look, Strip] = {}

    def looks(self, y: int, count: int) -> Sequence[Look]:
        """How so many lines look, from the one `y` lines below the top of what is in sight."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Refresh the visible lines that would now look different."""
        if not self.size:
            return
        looks = self.looks(0, self.size.height)
        self._refresh(y for y, look in enumerate(looks) if self._drawn.get(y) != look)
        if len(self._painted) > 2 * max(len(looks), 16):
            kept = {look: self._painted[look] for look in looks if look in self._painted}
            self._painted = kept

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._painted = {}

    def render_line(self, y: int) -> Strip:
        return self._strips(y, 1)[0]

    def render_lines(self, crop: Region) -> list[Strip]:
        if self.styles.gutter or self.opacity < 1:
            return super().render_lines(crop)
        strips = self._strips(crop.y, crop.height)
        if crop.column_span == (0, self.size.width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def _strips(self, y: int, count: int) -> list[Strip]:
        strips: list[Strip] = []
        width = self.size.width
        for at, look in enumerate(self.looks(y, count), y):
            strip = self._painted.get(look)
            if strip is None or strip.cell_length != width:
                strip = self._painted[look] = self._paint(look, width)
            self._drawn[at] = look
            strips.append(strip)
        return strips

    def _paint(self, look: Look, width: int) -> Strip:
        self.lines_rendered += 1
        mark, line = look
        if mark:
            return self.paint(((mark, "accent"), *line), width, "cursor")
        margin = " " * self.MARGIN
        return self.paint(((margin, PLAIN), *line) if margin else line, width)

    def _refresh(self, lines: Iterable[int]) -> None:
        """Have lines in sight drawn again: neighbours together, as each call has its price."""
        width = self.size.width
        regions = []
        for _, run in groupby(enumerate(lines), key=lambda pair: pair[1] - pair[0]):
            ys = [y for _, y in run]
            regions.append(Region(0, ys[0], width, len(ys)))
        if regions:
            self.refresh(*regions)
