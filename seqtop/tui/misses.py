"""The misses of the prefix cache in one history, once somebody wants to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqtop.history.timeline import Timeline

if TYPE_CHECKING:
    from seqtop.misses.cache_misses import BackgroundMisses


class Misses:
    """The reader of the misses of one history.

    Args:
        timeline: The history.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.reader: BackgroundMisses | None = None
        """Reads the history; `None` until `start`."""
        self.are_shown = False
        """True if the blocks screen shows them instead of the map."""
        self.selected: int | None = None
        """Number of the admission under the cursor."""
        self._timeline = timeline

    def start(self) -> BackgroundMisses:
        """Creates a reader for the history."""
        from seqtop.misses.cache_misses import BackgroundMisses

        self.reader = BackgroundMisses(self._timeline)
        return self.reader
