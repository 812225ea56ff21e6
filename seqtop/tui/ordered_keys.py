"""Handling of keys one by one, however fast they arrive.

Textual forwards each key to the widget that has the focus when the key arrives. It opens or closes
a dialog a few messages later. Keys that are pasted, sent by a script or typed ahead would reach the
screen that is about to be left: several arrive in one read, all before the first is handled.

Moving the focus earlier, or sending a key on to the screen that is open when it arrives, does not
suffice: an input inserts a letter at once, but Enter, Tab and all bindings first bubble to the app.
A letter would overtake an Enter before it. Of the 14 bursts in `tests/tui/test_ordered_keys.py`, 10
fail with Textual's own handling, and 11 if keys are sent on.
"""

import asyncio
import contextlib
from collections import deque

from textual import events
from textual.app import App, ScreenError
from textual.message_pump import MessagePump

_NUM_ROUNDS = 3
"""Rounds of messages that a key may cause: its action, the message that the action posts, and the
message that its handler posts."""
_TIMEOUT = 10.0
"""Seconds after which the next key is handled even if the previous one has not finished."""


class OrderedKeysApp(App[int]):
    """An app that handles a key, or a paste, when the previous one has had its effect.

    Keys that arrive before there is a screen wait for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pending_keys: deque[events.Event] = deque()
        self._current_key: events.Event | None = None
        self._keys_task: asyncio.Task[None] | None = None
        self._has_first_screen = False

    @property
    def has_pending_keys(self) -> bool:
        """True if a key has not had its effect yet."""
        return self._keys_task is not None or bool(self._pending_keys)

    async def on_event(self, event: events.Event) -> None:
        is_input = isinstance(event, events.Key | events.Paste) and not event.is_forwarded
        if not is_input or event is self._current_key:
            await super().on_event(event)
            return
        self._pending_keys.append(event)
        self._handle_next()

    def on_ready(self) -> None:
        self._has_first_screen = True
        self._handle_next()

    def _handle_next(self) -> None:
        if self._has_first_screen and self._keys_task is None and self._pending_keys:
            self._keys_task = asyncio.create_task(self._handle_pending_keys())

    async def _handle_pending_keys(self) -> None:
        try:
            while self._pending_keys and self.is_running:
                self._current_key = self._pending_keys.popleft()
                self.post_message(self._current_key)
                with contextlib.suppress(TimeoutError, ScreenError):
                    await asyncio.wait_for(self._wait_for_effect(), _TIMEOUT)
        finally:
            self._keys_task = None

    async def _wait_for_effect(self) -> None:
        """Waits until the key, and the messages that it caused, have been handled.

        They bubble from the focused widget to the app, which looks up the key's bindings.
        """
        await _wait_until_handled(self)
        for _ in range(_NUM_ROUNDS):
            for pump in (self.focused or self.screen).ancestors_with_self:
                await _wait_until_handled(pump)


async def _wait_until_handled(pump: MessagePump) -> None:
    """Waits until `pump` has handled the messages that are in its queue now."""
    done = asyncio.Event()
    if pump.call_later(done.set):
        await done.wait()
