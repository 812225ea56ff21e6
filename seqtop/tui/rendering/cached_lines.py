"""Lines that Textual makes once and that are kept for as long as nobody asks for others.

Textual goes through a widget's styles, its ancestors' and its filters for each frame in which
anything beside it, above it or below it has changed.
"""

from typing import TYPE_CHECKING, Self

from textual.geometry import Region, Size
from textual.strip import Strip

if TYPE_CHECKING:
    from textual.widget import Widget
else:
    Widget = object  # from the first base that is a widget Textual takes styles: not from a mixin


class Kept(Widget):
    """A mixin, to stand before a widget that changes seldom."""

    num_made = 0
    """How often its lines have been made; tests hold it down."""
    _kept: tuple[Region, Size, list[Strip]] | None = None

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._kept = None

    def refresh(
        self,
        *regions: Region,
        repaint: bool = True,
        layout: bool = False,
        recompose: bool = False,
    ) -> Self:
        self._kept = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def render_lines(self, crop: Region) -> list[Strip]:
        if self._kept is None or self._kept[:2] != (crop, self.outer_size):
            self.num_made += 1
            self._kept = crop, self.outer_size, super().render_lines(crop)
        return self._kept[2]
