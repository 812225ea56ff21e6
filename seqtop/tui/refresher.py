"""When the app draws: at once what comes after a rest, then at most thirty times a second.

Nothing is looked at while nothing comes: the thread that receives wakes whoever sleeps, once. Only
the age of a picture whose engine has gone silent is looked at on a beat.
"""

import asyncio
import contextlib
from collections.abc import Callable

from seqtop.tui.feed import Feed

FRAMES_PER_SECOND = 30
BEAT_SECONDS = 0.5
"""Between two looks at what ages by itself, which is shown in whole seconds."""
REST_SECONDS = 2.5
"""Between two looks while nothing comes: longer than from heartbeat to heartbeat."""


class Refresher:
    """Has news drawn, from `start` to `stop`. It takes none of Textual's timers: each tick of one
    is a message, and thirty a second of those are most of what an idle app would cost.

    Args:
        feed: The feed on show.
        draw: Draws its news; called on the event loop.
        rest: Called instead where there are none.
    """

    def __init__(
        self, feed: Callable[[], Feed], draw: Callable[[], object], rest: Callable[[], object]
    ) -> None:
        self._feed = feed
        self._draw = draw
        self._rest = rest
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.TimerHandle | None = None
        self._asleep = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._look()

    def stop(self) -> None:
        self._loop = None
        if self._next is not None:
            self._next.cancel()

    def wake(self) -> None:
        """Look now, unless a look is due within a frame; for any thread."""
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it has been closed in this moment
                loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        if self._asleep and self._next is not None:
            self._next.cancel()
            self._look()

    def _look(self) -> None:
        if self._loop is None:
            return
        feed = self._feed()
        self._asleep = not feed.has_news
        if self._asleep:
            self._rest()
            feed.call_at_news(self.wake)
            self._asleep = not feed.has_news  # what came in between has woken nobody
        if self._asleep:
            seconds = BEAT_SECONDS if feed.ages_by_itself else REST_SECONDS
            self._next = self._loop.call_later(seconds, self._look)
        else:
            self._draw()
            self._next = self._loop.call_later(1 / FRAMES_PER_SECOND, self._look)
