"""Lines that are painted once, and drawn from what was painted for as long as they look the same.

Textual would style each line of a widget anew for every frame it is in; rows without a border need
none of that. What a frame costs is what looks different in it, and a constant for each line.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Self, TypeAlias, cast

from textual.geometry import Region, Size
from textual.strip import Strip

from seqtop.tui.rendering.style import PLAIN, Inked, Line

Look: TypeAlias = tuple[str, Line]
"""All that decides how a line is drawn: the mark of the cursor, if it is there, and its text."""


class LineView(Inked):
    """A subclass says how the lines in sight look (`looks`)."""

    MARGIN = 0
    """Cells on the left of each line, for the cursor's mark."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 (Textual's own name)
        super().__init__(id=id)
        self.lines_rendered = 0
        """How many lines have been painted; tests hold it down."""
        self.looks_taken = 0
        """How often it was asked how the lines in sight look; tests hold it down."""
        self._sight: tuple[float, Size, bool] | None = None
        """Where and how large the following was; `None` if all is to be painted anew."""
        self._inside = Size(0, 0)
        """Without a border, and without the scroll bar's column."""
        self._looks: Sequence[Look] = ()
        self._strips: list[Strip | None] = []
        """The lines as they are drawn; `None` where one is yet to be painted."""
        self._top: list[Strip] | None = []
        """The border above the lines; `None` if there is one beside them, too."""

    def looks(self, y: int, count: int) -> Sequence[Look]:
        """How so many lines look, from the one `y` lines below the top of what is in sight."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Refresh the visible lines that would now look different."""
        if not self.is_on_screen:
            return
        changed = self._look()
        # Neighbours together, as each region has its price.
        runs = groupby(enumerate(changed), key=lambda pair: pair[1] - pair[0])
        ys = [[y for _, y in run] for _, run in runs]
        if ys:
            width = self._inside.width
            self.refresh(*(Region(0, run[0], width, len(run)) for run in ys))

    def refresh(
        self,
        *regions: Region,
        repaint: bool = True,
        layout: bool = False,
        recompose: bool = False,
    ) -> Self:
        if not regions:
            self._sight = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._sight, self._looks, self._strips = None, (), []

    def render_line(self, y: int) -> Strip:
        return self._strips_in_sight()[y]

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines, below a border if there is one; Textual's own way if there is one beside."""
        strips = self._strips_in_sight()
        if self._top is None:
            return super().render_lines(crop)
        if self._top or len(strips) != crop.height:
            strips = [*self._top, *strips][crop.y : crop.bottom]
        if crop.column_span == (0, self.outer_size.width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def _strips_in_sight(self) -> list[Strip]:
        """The lines as they are drawn now: what is in sight may be another part than it was."""
        if self._sight != self._in_sight():
            self._look()
        for y, strip in enumerate(self._strips):
            if strip is None:
                self._strips[y] = self._paint(self._looks[y])
        return cast("list[Strip]", self._strips)

    def _in_sight(self) -> tuple[float, Size, bool]:
        """What decides which lines are in sight and how wide they are, quick to find out."""
        return self.scroll_y, self.outer_size, self.show_vertical_scrollbar

    def _look(self) -> list[int]:
        """See how the lines in sight look now; returns which are different."""
        self.looks_taken += 1
        sight, width = self._in_sight(), self._inside.width
        is_same = sight == self._sight
        if not is_same:
            self._measure()
        before, looks = self._looks, self.looks(0, self._inside.height)
        changed = [y for y, look in enumerate(looks) if not is_same or look != before[y]]
        if changed or not is_same:  # which may have left no line at all
            # Lines that come back at another place are the same objects.
            strips = {
                (id(line), mark): strip
                for (mark, line), strip in zip(before, self._strips, strict=True)
                if self._inside.width == width
            }
            if not is_same:
                self._strips = [None] * len(looks)
            for y in changed:
                mark, line = looks[y]
                self._strips[y] = strips.get((id(line), mark))
        self._sight, self._looks = sight, looks
        return changed

    def _measure(self) -> None:
        self._inside = self.scrollable_size
        top, *others = self.styles.gutter
        self._top = None if any(others) or self.opacity < 1 else []
        if top and self._top is not None:
            self._top = super().render_lines(Region(0, 0, self.outer_size.width, top))

    def _paint(self, look: Look) -> Strip:
        self.lines_rendered += 1
        mark, line = look
        width = self._inside.width
        if mark:
            return self.paint(((mark, "accent"), *line), width, "cursor")
        margin = " " * self.MARGIN
        return self.paint(((margin, PLAIN), *line) if margin else line, width)
