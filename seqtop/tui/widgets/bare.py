"""Containers that nothing of is seen but what they contain, or their background."""

from textual.containers import Container, Vertical
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Bare(Widget):
    """Blank lines that are made once: Textual would go through its styles for each in each frame.

    A mixin, to stand before a widget without border and padding.
    """

    _blanks: list[Strip]

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._blanks = []

    def render_lines(self, crop: Region) -> list[Strip]:
        width, height = self.size
        if crop.column_span != (0, width) or self.styles.gutter:
            return super().render_lines(crop)
        if len(self._blanks) < height or self._blanks[0].cell_length != width:
            (blank,) = super().render_lines(Region(0, 0, width, 1))
            # One for each line, as each remembers how it was last cut into pieces.
            self._blanks = [Strip(blank, width) for _ in range(height)]
        return self._blanks[crop.y : crop.bottom]


class Box(Bare, Container):
    """A container without a look of its own."""


class Column(Bare, Vertical):
    """The same, its contents one below the other."""
