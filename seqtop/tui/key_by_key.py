"""Keys reach what they were meant for, however fast they come.

Textual hands each key to whatever has the focus at that instant, and what a key leads to, such as a
dialog that opens or closes, happens a few messages later: keys that are pasted, sent by a script or
typed ahead would go to the screen that is about to be left.
"""

import asyncio
import contextlib
from collections import deque

from textual import events
from textual.app import App, ScreenError
from textual.message_pump import MessagePump

_ROUNDS = 3
"""How far what a key does is followed: the action it is bound to, the message that this posts, and
what is made of that one."""
_PATIENCE = 10.0
"""Seconds after which the next key is handed on, whatever the last one is still about."""


class KeyByKeyApp(App[int]):
    """Looks at a key, or a paste, once all has happened that the one before led to.

    Before there is a screen it looks at none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.Event] = deque()
        self._handed: events.Event | None = None
        self._handing: asyncio.Task[None] | None = None
        self._has_screen = False

    async def on_event(self, event: events.Event) -> None:
        is_typed = isinstance(event, events.Key | events.Paste) and not event.is_forwarded
        if not is_typed or event is self._handed:
            await super().on_event(event)
            return
        self._typed.append(event)
        self._hand_on()

    def on_ready(self) -> None:
        self._has_screen = True
        self._hand_on()

    def key_comes(self) -> None:
        """A key, or a paste, is about to be looked at."""

    def key_went(self) -> None:
        """All has happened that it led to."""

    def _hand_on(self) -> None:
        if self._has_screen and self._handing is None and self._typed:
            self._handing = asyncio.create_task(self._one_by_one())

    async def _one_by_one(self) -> None:
        try:
            while self._typed and self.is_running:
                self._handed = self._typed.popleft()
                self.key_comes()
                self.post_message(self._handed)
                with contextlib.suppress(TimeoutError, ScreenError):
                    await asyncio.wait_for(self._settle(), _PATIENCE)
                    self.key_went()
        finally:
            self._handing = None

    async def _settle(self) -> None:
        """Wait until the key has gone from the widget that has the focus up to the app, which is
        where its bindings are looked up, and the same way what they have posted."""
        await _emptied(self)
        for _ in range(_ROUNDS):
            for pump in (self.focused or self.screen).ancestors_with_self:
                await _emptied(pump)


async def _emptied(pump: MessagePump) -> None:
    """Wait until all is done that is in the queue of `pump` now."""
    done = asyncio.Event()
    if pump.call_later(done.set):
        await done.wait()
