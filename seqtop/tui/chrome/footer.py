"""The line of keys at the bottom."""

from typing import Protocol, runtime_checkable

from textual.app import ComposeResult
from textual.widgets import Footer, Static

_FIRST = ("quit", "help", "pause", "filter", "step(-1)")
"""Actions whose keys are left out last; of the others, the rightmost are left out first."""
_LAST = "follow"
"""The action whose key is left out first."""


@runtime_checkable
class _FooterKey(Protocol):
    """The public attributes of the widgets that Textual's footer makes for keys."""

    action: str
    key_display: str
    description: str

    def set_class(self, add: bool, *class_names: str, update: bool) -> object: ...


class KeyFooter(Footer):
    """Textual's footer without the keys that do not fit; a text right of them, if there is room."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._text = ""
        self._room = 0
        """The cells that the keys leave."""
        self._width = 0
        self._hidden: frozenset[str] = frozenset()
        self._pause = "Pause"

    def update_keys(self, hidden: frozenset[str], pause: str) -> None:
        """Draws the keys again, if one of the arguments has changed.

        Args:
            hidden: Actions that are disabled: their keys are hidden.
            pause: A word for what the key of the action `pause` does now.
        """
        if (hidden, pause) != (self._hidden, self._pause):
            self._hidden, self._pause = hidden, pause
            if self.is_mounted:
                self.refresh(recompose=True)

    def update_text(self, text: str) -> None:
        """Shows a text at the right."""
        if text != self._text:
            self._text = text
            for static in self.query(".footer-text").results(Static):
                static.update(self._shown_text, layout=False)

    @property
    def _shown_text(self) -> str:
        return self._text if len(self._text) + 2 <= self._room else ""

    def compose(self) -> ComposeResult:
        self._width = self.app.size.width
        keys = [
            widget
            for widget in super().compose()
            if isinstance(widget, _FooterKey) and _name(widget) not in self._hidden
        ]
        for key in keys:
            if _name(key) == "pause":
                key.description = self._pause
        while len(keys) > 1 and sum(map(_cells, keys)) > self._width:
            keys.remove(max(keys, key=lambda key: (_rank(key), keys.index(key))))
        self.styles.grid_size_columns = max(len(keys), 1)
        for key in keys:  # set before they are mounted, or each is styled twice
            key.set_class(True, "-compact", update=False)
        yield from keys
        self._room = self._width - sum(map(_cells, keys))
        if keys:
            # No id: a former one may still be there, since Textual does not wait for a widget whose
            # task has not begun, and two of one id end the app.
            static = Static(self._shown_text, classes="footer-text", markup=False)
            static.styles.width = max(self._room, 0)  # fixed, so that no text changes the layout
            yield static

    def on_mount(self) -> None:
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        """Composes the keys if Textual published them before this widget subscribed."""
        if not self.children:
            self.bindings_changed(self.screen)

    async def on_resize(self) -> None:
        if self.app.size.width != self._width:
            await self.recompose()


def _rank(key: _FooterKey) -> int:
    name = _name(key)
    return _FIRST.index(name) if name in _FIRST else len(_FIRST) + (name == _LAST)


def _name(key: _FooterKey) -> str:
    return key.action.rpartition(".")[2]


def _cells(key: _FooterKey) -> int:
    return len(key.key_display) + len(key.description) + 2
