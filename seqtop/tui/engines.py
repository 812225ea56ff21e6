"""Several engines in one app: a feed for each, one of them on show."""

from collections.abc import Callable, Sequence

from seqtop.tui.feed import Feed
from seqtop.tui.source import Source


class Engines:
    """The engines, in the order in which they were named; `shown` is the index of one."""

    def __init__(self, sources: Sequence[Source], clock: Callable[[], float]) -> None:
        self.feeds = [Feed(source, clock) for source in sources]
        self.shown = 0

    def __len__(self) -> int:
        return len(self.feeds)

    @property
    def feed(self) -> Feed:
        """The feed of the engine on show."""
        return self.feeds[self.shown]

    def glance(self) -> None:
        """Take the rates of the engines that are not on show."""
        for index, feed in enumerate(self.feeds):
            if index != self.shown:
                feed.glance()
