"""The line of keys at the bottom: where there is no room for all, those that matter most."""

from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

_FIRST = ("quit", "help", "pause", "filter")
"""Actions whose keys stay longest; of the others the leftmost."""


class KeyFooter(Footer):
    """Textual's footer, cut to the width at hand."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._width = 0
        self._without: frozenset[str] = frozenset()

    def leave_out(self, actions: frozenset[str]) -> None:
        """Offer no keys of these actions, which would only say that they cannot be."""
        if actions != self._without:
            self._without = actions
            self.refresh(recompose=True)

    def compose(self) -> ComposeResult:
        self._width = self.app.size.width
        keys = [
            each
            for each in super().compose()
            if isinstance(each, FooterKey) and _name(each) not in self._without
        ]
        while len(keys) > 1 and sum(map(_cells, keys)) > self._width:
            keys.remove(max(keys, key=lambda key: (_rank(key), keys.index(key))))
        self.styles.grid_size_columns = max(len(keys), 1)
        yield from keys

    async def on_resize(self) -> None:
        if self.app.size.width != self._width:
            await self.recompose()


def _rank(key: FooterKey) -> int:
    name = _name(key)
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _name(key: FooterKey) -> str:
    return key.action.rpartition(".")[2]


def _cells(key: FooterKey) -> int:
    return len(key.key_display) + len(key.description) + 2
