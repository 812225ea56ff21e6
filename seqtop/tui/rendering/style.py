"""Lines of text in named inks: what the pure parts of the app make and widgets paint.

A line is a tuple of spans, a span is a text and the name of an ink. Inks are component classes of
the screen (of each widget they would be styled anew at every change of focus), so the stylesheet
and the theme say how each looks.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget

from seqtop.sanitize import safe_text
from seqtop.tui.rendering.cached_lines import Kept

Span: TypeAlias = tuple[str, str]
Line: TypeAlias = tuple[Span, ...]

PLAIN = ""
INKS = frozenset(
    {
        "dim", "strong", "delta", "title", "accent", "alert", "track", "computed", "cached",
        "shared", "running", "prefill", "waiting", "preempted", "swapped", "finished", "aborted",
        "badge-live", "badge-paused", "badge-wait", "badge-alert", "cursor", "header", "tab",
        "marked", "match", "unsure", "unlikely",
    }
)  # fmt: skip
INK_CLASSES = {f"ink--{name}" for name in INKS}
"""The component classes of a screen with `Inked` widgets on it."""


def text_width(text: str) -> int:
    """Cells that a text takes."""
    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def line_width(line: Line) -> int:
    """Cells that a line takes."""
    # Written out, as it is called for each of some hundred spans of a frame.
    return sum(
        [len(text) if text.isascii() and text.isprintable() else cell_len(text) for text, _ in line]
    )


def plain(line: Line) -> str:
    """A line's text."""
    return "".join(text for text, _ in line)


def fitted(line: Line, width: int) -> Line:
    """`line` in exactly `width` cells: padded, or cut with an ellipsis."""
    size = line_width(line)
    if size <= width:
        return line if size == width else (*line, (" " * (width - size), PLAIN))
    kept: list[Span] = []
    room = max(width - 1, 0)
    for text, ink in line:
        size = text_width(text)
        if size > room:
            kept.append((set_cell_size(text, room) + "…", ink))
            break
        kept.append((text, ink))
        room -= size
    return tuple(kept) if width > 0 else ()


def marked(line: Line, patterns: Iterable[re.Pattern[str]]) -> Line:
    """`line` with what the patterns find marked; with all its first word if they find nothing."""
    text = plain(line)
    ranges = sorted(found.span() for each in patterns for found in each.finditer(text))
    ranges = [(start, end) for start, end in ranges if start < end]
    if not ranges and (word := re.search(r"\S+", text)):
        ranges = [word.span()]
    spans: list[Span] = []
    at = 0
    for part, ink in line:
        end = at + len(part)
        for start, stop in ranges:
            if stop <= at or start >= end:
                continue
            if start > at:
                spans.append((text[at:start], ink))
            at = min(stop, end)
            spans.append((text[max(start, end - len(part)) : at], "match"))
        if at < end:
            spans.append((text[at:end], ink))
        at = end
    return tuple(span for span in spans if span[0])


class Painted(Strip):
    """A line that is drawn whole, if nothing stands before it: at most a scroll bar at its end.

    Textual's own would then keep itself among the parts that it was divided into: garbage that
    only the collector finds, some fifty objects for each line of each frame.
    """

    __slots__ = ()

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        cuts = list(cuts)
        return [self] if cuts[:1] == [self.cell_length] else super().divide(cuts)


class KeptScrollBar(Kept, ScrollBar):
    """A scroll bar that is made anew when it moves."""


class Inked(Kept, ScrollView):
    """A scroll view that paints lines. Everything drawn by it passes through `safe_text`."""

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            bar = KeptScrollBar(name="vertical", thickness=self.scrollbar_size_vertical)
            bar.display = False
            self._vertical_scrollbar = bar
            self.app._start_widget(self, bar)
        return self._vertical_scrollbar

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles_by_ink: dict[tuple[str, ...], Style] = {}

    @property
    def text_width(self) -> int:
        """Cells for text: all but the scroll bar's column, whether or not it shows just now."""
        return max(self.outer_size.width - self.styles.gutter.width - 1, 1)

    def set_height(self, count: int) -> None:
        """Be `count` lines high. Lays the screen out anew only if the scroll bar comes or goes."""
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

    def ink(self, *names: str) -> Style:
        """The style of inks, each over those before it and all over the widget's own.

        Textual's filters (for terminals with fewer colours) are applied to it already: to a style
        once, rather than to each piece of text that is drawn with it.
        """
        try:
            return self._styles_by_ink[names]
        except KeyError:
            style = self.rich_style
            for name in filter(None, names):
                style += self.screen.get_component_rich_style(f"ink--{name}", partial=True)
            for each in self.get_line_filters():
                (segment,) = each.apply([Segment("x", style)], self.background_colors[1])
                style = segment.style or style
            return self._styles_by_ink.setdefault(names, style)

    def paint(self, line: Iterable[Span], width: int, *under: str) -> Strip:
        """Draw `line` in `width` cells on the widget's own style and the inks `under` it.

        Neighbours of one ink become one segment: what the terminal is sent, and all that Textual
        does on the way, is by the segment.
        """
        texts: list[str] = []
        inks: list[str] = []
        last = None
        room = width
        for text, name in line:
            room -= len(text) if text.isascii() else cell_len(text)
            if name == last:
                texts[-1] += text
            else:
                texts.append(text)
                inks.append(name)
                last = name
        if not "".join(texts).isprintable():
            texts = [safe_text(text) for text in texts]
            room = width - sum(map(text_width, texts))
        if room > 0:
            texts.append(" " * room)
            inks.append(PLAIN)
        known = self._styles_by_ink
        styles = [known.get((*under, name)) or self.ink(*under, name) for name in inks]
        segments = map(Segment, texts, styles)
        strip = Painted(segments, width - min(room, 0))
        return strip if room >= 0 else strip.crop(0, width)
