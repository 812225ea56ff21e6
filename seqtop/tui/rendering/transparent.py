"""Containers that nothing of is seen but what they contain."""

from textual.containers import Container, Vertical
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Bare(Widget):
    """Draws nothing: what is behind it shows, as it would through a transparent background.

    Textual would make, and cut at the borders of all others, a blank line for each of its lines in
    each frame. A mixin, to stand before a widget without a border, padding or background.
    """

    def render_lines(self, crop: Region) -> list[Strip]:
        return []


class Box(Bare, Container):
    """A container without a look of its own."""


class Column(Bare, Vertical):
    """The same, its contents one below the other."""
