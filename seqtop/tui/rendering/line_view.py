"""A scroll view of styled lines, drawn with Textual's Line API."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.containers import ScrollableContainer
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, text_width

DrawnLine: TypeAlias = tuple[Line, str]
"""A line, and the name of the style below all of it (`PLAIN` for none)."""

CACHED_STRIPS = 128
"""The strips that a view caches: about twice its visible lines. One takes 5 kB, with the copies of
which Textual makes several."""

SCROLL_BINDINGS: list[BindingType] = [
    binding
    for binding in ScrollableContainer.BINDINGS
    if isinstance(binding, Binding) and binding.key not in {"left", "right"}
]
"""Textual's keys for scrolling up and down. Left and right move through the history."""


class LineView(ScrollView, can_focus=False):
    """A column of lines that redraws only the lines that differ from those on the screen.

    Shows the lines given to `set_lines`. A subclass that makes its lines when they become visible
    overrides `visible_lines`. All text passes through `safe_text` on its way to the terminal.
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 (Textual's own name)
        self._lines: Sequence[Line] = ()
        self._drawn: Sequence[DrawnLine] = ()
        self._drawn_at: tuple[int, Size] | None = None
        """Scroll offset and size for which `_drawn` was made; `None` if it is out of date."""
        self._strips: LRUCache[tuple[Line, str, int], Strip] = LRUCache(CACHED_STRIPS)
        self._rich_styles: dict[tuple[str, str], Style] = {}
        super().__init__(id=id)

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Replaces the lines of the view."""
        self._lines = list(lines)
        self.set_height(len(lines))
        self.refresh_changed()

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        """Returns at most `count` lines, beginning with line `top`."""
        return [(line, PLAIN) for line in self._lines[max(top, 0) : max(top + count, 0)]]

    def refresh_changed(self) -> None:
        """Redraws the visible lines that differ from those on the screen."""
        if not self.is_on_screen:
            self._drawn_at = None  # drawn again when it is shown
            return
        drawn, drawn_at = self._drawn, self._drawn_at
        self._drawn_at = top, size = self._visible_range
        self._drawn = _padded(self.visible_lines(top, size.height), size.height)
        if drawn_at != (top, size):
            self.refresh_lines(top, size.height)
            return
        changed = [
            y for y, (old, new) in enumerate(zip(drawn, self._drawn, strict=True)) if old != new
        ]
        # Neighbours are refreshed together: each region has a cost of its own.
        for _, run in groupby(enumerate(changed), key=lambda pair: pair[1] - pair[0]):
            ys = [y for _, y in run]
            self.refresh_lines(top + ys[0], len(ys))

    def render_lines(self, crop: Region) -> list[Strip]:
        if self._drawn_at != self._visible_range:
            was_out_of_date = self._drawn_at is None
            self._drawn_at = top, size = self._visible_range
            self._drawn = _padded(self.visible_lines(top, size.height), size.height)
            if was_out_of_date:  # Textual has cached lines of before
                self.refresh_lines(top, size.height)
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        # The size of a widget is costly to get, and the same for all lines of a frame.
        width = self._drawn_at[1].width if self._drawn_at is not None else self.size.width
        line, base = self._drawn[y] if y < len(self._drawn) else ((), PLAIN)
        strip = self._strips.get(key := (line, base, width))
        if strip is None:
            strip = self._strips[key] = self._make_strip(line, base, width)
        return strip

    def get_line_filters(self) -> Sequence[LineFilter]:
        # All styles here have a theme's colours, and none is dim: there is nothing to translate.
        filters = super().get_line_filters()
        return [own for own in filters if not isinstance(own, ANSIToTruecolor)]

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn_at = None
        self._strips.clear()
        self._rich_styles.clear()

    @property
    def text_width(self) -> int:
        """The cells for text: without the scroll bar's column, even while no scroll bar shows."""
        return max(self.outer_size.width - self.styles.gutter.width - 1, 1)

    def set_height(self, count: int) -> None:
        """Makes the content `count` lines high.

        The screen is laid out again only if the scroll bar appears or disappears.
        """
        old, new = self.virtual_size.height, count
        if old == new:
            return
        size = Size(self.size.width, new)
        if (old > self.size.height) == (new > self.size.height) and not self.styles.auto_dimensions:
            self.set_reactive(Widget.virtual_size, size)
            if self.show_vertical_scrollbar:
                self.vertical_scrollbar.window_virtual_size = new
            if self.scroll_offset.y > self.max_scroll_y:
                self.scroll_to(y=self.max_scroll_y, animate=False)
        else:
            self.virtual_size = size

    @property
    def _visible_range(self) -> tuple[int, Size]:
        return self.scroll_offset.y, self.size

    def _style(self, base: str, name: str) -> Style:
        """Returns a named style over the style `base`, both over the widget's own style."""
        style = self._rich_styles.get((base, name))
        if style is None:
            style = self.rich_style
            for part in filter(None, (base, name)):
                style += self.screen.get_component_rich_style(f"style--{part}", partial=True)
            self._rich_styles[base, name] = style
        return style

    def _make_strip(self, line: Iterable[StyledText], base: str, width: int) -> Strip:
        """Draws a line in `width` cells.

        Neighbours of one style become one segment: the time that Textual needs, and the bytes that
        the terminal gets, grow with the number of segments.
        """
        segments: list[Segment] = []
        room = width
        for style, run in groupby(line, key=lambda span: span[1]):
            text = "".join([piece for piece, _ in run])
            if not text.isprintable():
                text = safe_text(text)
            room -= text_width(text)
            segments.append(Segment(text, self._style(base, style)))
        if room > 0:
            segments.append(Segment(" " * room, self._style(base, PLAIN)))
        strip = Strip(segments, width - min(room, 0))
        return strip if room >= 0 else strip.crop(0, width)


def _padded(lines: Sequence[DrawnLine], height: int) -> list[DrawnLine]:
    """Returns `height` lines; the last ones may be empty."""
    return [*lines, *[((), PLAIN)] * (height - len(lines))]


class DraggableView(LineView):
    """A line view that calls `drag_to` where the mouse is pressed, and where it is dragged to."""

    _is_dragged = False

    def drag_to(self, x: int) -> None:
        """Handles the column `x` of the view, which is negative or too large outside of it."""
        raise NotImplementedError

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._is_dragged = True
        self.capture_mouse()
        self.drag_to(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._is_dragged:
            self.drag_to(event.x)

    def on_mouse_up(self, _: events.MouseUp) -> None:
        self._is_dragged = False
        self.release_mouse()
