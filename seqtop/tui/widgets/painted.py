"""Lines that are painted once, and drawn from what was painted for as long as they look the same.

Textual would style each line of a widget anew for every frame it is in; rows without a border need
none of that. What a frame costs is what looks different in it, and a constant for each line.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Self, TypeAlias

from textual.geometry import Region, Size
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
        self.looks_taken = 0
        """How often it was asked how the lines in sight look; tests hold it down."""
        self._sight: tuple[int, Size] | None = None
        """Which lines the following are of; `None` if they are to be painted anew."""
        self._looks: Sequence[Look] = ()
        self._strips: list[Strip | None] = []
        """The lines as they are drawn; `None` where one is yet to be painted."""
        self._painted: dict[Look, Strip] = {}
        """What has been painted lately: lines often come back at another place."""
        self._top: list[Strip] = []
        """The border above the lines."""

    def looks(self, y: int, count: int) -> Sequence[Look]:
        """How so many lines look, from the one `y` lines below the top of what is in sight."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Refresh the visible lines that would now look different."""
        sight = self._in_sight()
        if not sight[1]:
            return
        changed = self._look(sight)
        if len(self._painted) > 2 * max(len(self._looks), 16):
            kept = {look: self._painted[look] for look in self._looks if look in self._painted}
            self._painted = kept
        # Neighbours together, as each region has its price.
        runs = groupby(enumerate(changed), key=lambda pair: pair[1] - pair[0])
        ys = [[y for _, y in run] for _, run in runs]
        if ys:
            self.refresh(*(Region(0, run[0], sight[1].width, len(run)) for run in ys))

    def refresh(
        self,
        *regions: Region,
        repaint: bool = True,
        layout: bool = False,
        recompose: bool = False,
    ) -> Self:
        if not regions:
            self._forget()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._painted = {}
        self._forget()

    def _forget(self) -> None:
        self._sight, self._top = None, []

    def render_line(self, y: int) -> Strip:
        self._keep_up()
        return self._strip(y)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines, below a border if there is one; Textual's own way if there is one beside."""
        top, *others = self.styles.gutter
        if any(others) or self.opacity < 1:
            return super().render_lines(crop)
        width = self.outer_size.width
        self._keep_up()
        if top and not self._top:
            self._top = super().render_lines(Region(0, 0, width, top))
        strips = [self._top[y] if y < top else self._strip(y - top) for y in crop.line_range]
        if crop.column_span == (0, width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def _in_sight(self) -> tuple[int, Size]:
        """Which lines are in sight: the first, and how many of which width."""
        return self.scroll_offset.y, self.scrollable_size

    def _keep_up(self) -> None:
        """Look again, if other lines are in sight than when it was last looked at."""
        if self._sight != (sight := self._in_sight()):
            self._top = []
            self._look(sight)

    def _look(self, sight: tuple[int, Size]) -> list[int]:
        """See how the lines in sight look now; returns which are different."""
        self.looks_taken += 1
        looks = self.looks(0, sight[1].height)
        if sight == self._sight:
            changed = [y for y, look in enumerate(looks) if look != self._looks[y]]
            for y in changed:
                self._strips[y] = None
        else:
            changed = [*range(len(looks))]
            self._strips = [None] * len(looks)
        self._sight, self._looks = sight, looks
        return changed

    def _strip(self, y: int) -> Strip:
        """The line `y` below the top of what is in sight; the scroll bar's column is left out."""
        strip = self._strips[y]
        if strip is None:
            assert self._sight is not None
            width = self._sight[1].width
            look = self._looks[y]
            strip = self._painted.get(look)
            if strip is None or strip.cell_length != width:
                strip = self._painted[look] = self._paint(look, width)
            self._strips[y] = strip
        return strip

    def _paint(self, look: Look, width: int) -> Strip:
        self.lines_rendered += 1
        mark, line = look
        if mark:
            return self.paint(((mark, "accent"), *line), width, "cursor")
        margin = " " * self.MARGIN
        return self.paint(((margin, PLAIN), *line) if margin else line, width)
