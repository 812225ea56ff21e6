"""Limits the frame rates: at most 30 times a second for what was asked for, 5 times for news.

News is what an engine or a playing recording does by itself: nobody reads faster.

At most half of the time is for drawing. A key has its effect after several rounds of messages; with
a slow frame in each of them it would take seconds, and so would the first painting of a screen.

A frame waits until the terminal has taken the one before. Otherwise Textual would queue ten of them
and then wait, and with a slow connection a key would have its effect after those.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable

FRAMES_PER_SECOND = 30
NEWS_PER_SECOND = 5


class Refresher:
    """Calls `draw` on the event loop after `wake`, as often as its callers want it at most.

    It uses no timer of Textual: each tick would be a message, and 30 messages a second would be
    most of the cost of an idle app.

    Args:
        draw: Draws a frame.
        call_next: Calls a function on the event loop, soon.
        shown: Returns the source on display; the changes of others need no frame.
        is_behind: Returns whether the terminal has not taken all that was drawn.
    """

    def __init__(
        self,
        draw: Callable[[], object],
        call_next: Callable[[Callable[[], None]], object],
        shown: Callable[[], object] = lambda: None,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self._draw = draw
        self._call_next = call_next
        self._shown = shown
        self._is_behind = is_behind
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.TimerHandle | None = None
        self._due_at: float | None = None
        """The time of the frame that is wanted; `None` if none is."""
        self._begun_at = -math.inf
        """The time at which the last frame was begun."""
        self._earliest = 0.0

    def start(self) -> None:
        """Starts on the running event loop and draws a first frame."""
        self._loop = asyncio.get_running_loop()
        self.wake()

    def stop(self) -> None:
        self._loop = None
        if self._next is not None:
            self._next.cancel()

    def wake(self, source: object | None = None, *, rate: int = FRAMES_PER_SECOND) -> None:
        """Requests a frame; any thread may call it.

        Args:
            source: The source that has changed; `None` for a frame in any case.
            rate: The most frames per second that are worth drawing for this.
        """
        if (loop := self._loop) is None or (source is not None and source is not self._shown()):
            return
        due_at, wanted = self._begun_at + 1 / rate, self._due_at
        if wanted is not None and wanted <= due_at:
            return
        self._due_at = due_at
        with contextlib.suppress(RuntimeError):  # the loop may just have been closed
            loop.call_soon_threadsafe(self._show_frame)

    def _show_frame(self) -> None:
        """Schedules the frame that is wanted."""
        if self._loop is None or (due_at := self._due_at) is None:
            return
        if self._next is not None:
            self._next.cancel()
        delay = max(due_at, self._earliest) - self._loop.time()
        if delay <= 0 and self._is_behind():
            delay = 1 / FRAMES_PER_SECOND
        if delay > 0:
            self._next = self._loop.call_later(delay, self._show_frame)
            return
        self._due_at = None  # before drawing: later changes need another frame
        self._begun_at = self._loop.time()
        self._call_next(self._draw_frame)

    def _draw_frame(self) -> None:
        if (loop := self._loop) is None:
            return
        started = loop.time()
        self._draw()
        drawn = loop.time()
        self._earliest = drawn + (drawn - started)
