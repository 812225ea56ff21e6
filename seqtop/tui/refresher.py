"""Limits the frame rate: the display is drawn after a change, at most 30 times a second.

At most half of the time is for drawing. A key has its effect after several rounds of messages; with
a slow frame in each of them it would take seconds, and so would the first painting of a screen.
"""

import asyncio
import contextlib
from collections.abc import Callable

FRAMES_PER_SECOND = 30


class Refresher:
    """Calls `draw` on the event loop after `wake`, at most `FRAMES_PER_SECOND` times a second.

    It uses no timer of Textual: each tick would be a message, and 30 messages a second would be
    most of the cost of an idle app.

    Args:
        draw: Draws a frame.
        call_next: Calls a function on the event loop, soon.
        shown: Returns the source on display; the changes of others need no frame.
    """

    def __init__(
        self,
        draw: Callable[[], object],
        call_next: Callable[[Callable[[], None]], object],
        shown: Callable[[], object] = lambda: None,
    ) -> None:
        self._draw = draw
        self._call_next = call_next
        self._shown = shown
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.TimerHandle | None = None
        self._is_due = False
        self._earliest = 0.0

    def start(self) -> None:
        """Starts on the running event loop and draws a first frame."""
        self._loop = asyncio.get_running_loop()
        self.wake()

    def stop(self) -> None:
        self._loop = None
        if self._next is not None:
            self._next.cancel()

    def wake(self, source: object | None = None) -> None:
        """Requests a frame; any thread may call it.

        Args:
            source: The source that has changed; `None` for a frame in any case.
        """
        if (loop := self._loop) is None or self._is_due:
            return
        if source is not None and source is not self._shown():
            return
        self._is_due = True
        with contextlib.suppress(RuntimeError):  # the loop may just have been closed
            loop.call_soon_threadsafe(self._show_frame)

    def _show_frame(self) -> None:
        """Schedules a frame, as soon as the frame rate allows it."""
        if self._loop is None:
            return
        if (delay := self._earliest - self._loop.time()) > 0:
            self._next = self._loop.call_later(delay, self._show_frame)
            return
        self._is_due = False  # before drawing: later changes need another frame
        self._earliest = self._loop.time() + 1 / FRAMES_PER_SECOND
        self._call_next(self._draw_frame)

    def _draw_frame(self) -> None:
        if (loop := self._loop) is None:
            return
        started = loop.time()
        self._draw()
        drawn = loop.time()
        self._earliest = max(self._earliest, drawn + (drawn - started))
