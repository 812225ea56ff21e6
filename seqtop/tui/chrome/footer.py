"""The line of keys at the bottom."""

from collections.abc import Sequence
from typing import NamedTuple

from textual import events
from textual.screen import Screen

from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, text_width

_FIRST = ("quit", "help", "pause", "filter", "step(-1)")
"""Actions whose keys are left out last; of the others, the rightmost are left out first."""
_LAST = "follow"
"""The action whose key is left out first."""


class _Key(NamedTuple):
    """A key and what it does."""

    name: str
    """Textual's name of the key."""
    sign: str
    """The key as it is shown."""
    word: str
    tooltip: str
    action: str

    @property
    def width(self) -> int:
        return text_width(self.sign) + len(self.word) + 2

    @property
    def rank(self) -> int:
        if self.action in _FIRST:
            return _FIRST.index(self.action)
        return len(_FIRST) + (self.action == _LAST)


class KeyFooter(LineView):
    """The keys of the screen that fit, and a text right of them, if there is room for it.

    A click presses a key. All is one line of one widget: with a widget for each key, as in
    Textual's footer, a switch of screens would mount, style and lay out a dozen of them twice.
    """

    def __init__(self) -> None:
        super().__init__(id="footer")
        self._text = ""
        self._hidden: frozenset[str] = frozenset()
        self._pause = "Pause"
        self._keys: Sequence[_Key] | None = None
        """The keys of the screen, in order; `None` if they may have changed."""
        self._shown: Sequence[_Key] = ()
        """Those that fit."""

    def update_keys(self, hidden: frozenset[str], pause: str) -> None:
        """Draws the keys again, if one of the arguments has changed.

        Args:
            hidden: Actions that are disabled: their keys are hidden.
            pause: A word for what the key of the action `pause` does now.
        """
        if (hidden, pause) != (self._hidden, self._pause):
            self._hidden, self._pause = hidden, pause
            self._forget_keys()

    def update_text(self, text: str) -> None:
        """Shows a text at the right."""
        if text != self._text:
            self._text = text
            self.refresh_changed()

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        return [(self._line(self.size.width), PLAIN)][:count]

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_updated)

    def on_click(self, event: events.Click) -> None:
        if (key := self._key_at(event.x)) is not None:
            self.app.simulate_key(key.name)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        key = self._key_at(event.x)
        self.tooltip = key.tooltip if key is not None else None

    def _bindings_updated(self, screen: Screen[object]) -> None:
        # While the app has no focus, no widget has one; its keys stay.
        if screen is self.screen and screen.app.app_focus:
            self._forget_keys()

    def _forget_keys(self) -> None:
        self._keys = None
        if self.is_mounted:
            self.call_after_refresh(self.refresh_changed)

    def _find_keys(self) -> list[_Key]:
        """Returns the first key of each action that has one to show."""
        found: dict[str, _Key] = {}
        for _, binding, _, tooltip in self.screen.active_bindings.values():
            action = binding.action.rpartition(".")[2]
            if binding.show and action not in self._hidden and action not in found:
                word = self._pause if action == "pause" else binding.description
                sign = self.app.get_key_display(binding)
                found[action] = _Key(binding.key, sign, word, tooltip or word, action)
        return [*found.values()]

    def _line(self, width: int) -> Line:
        if self._keys is None:
            self._keys = self._find_keys()
        keys = [*self._keys]
        while len(keys) > 1 and sum(key.width for key in keys) > width:
            keys.remove(max(keys, key=lambda key: (key.rank, keys.index(key))))
        self._shown = keys
        spans: list[StyledText] = []
        for key in keys:
            spans += [(key.sign, "key"), (f" {key.word} ", PLAIN)]
        room = width - sum(key.width for key in keys)
        text = self._text if len(self._text) + 2 <= room else ""
        return (*spans, (" " * (room - len(text) - 1), PLAIN), (text, "dim"))

    def _key_at(self, x: int) -> _Key | None:
        right = 0
        for key in self._shown:
            right += key.width
            if x < right:
                return key
        return None
