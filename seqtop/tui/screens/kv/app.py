"""The app for engines that publish KV-cache events: blocks, and no requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from textual.binding import Binding

from seqtop.tui import signals, theme
from seqtop.tui.dialogs.help import HelpScreen, Notes
from seqtop.tui.keymap import APP_KEYS
from seqtop.tui.ordered_keys import OrderedKeysApp
from seqtop.tui.screens.kv.screens import KvBlocksScreen, KvScreen, KvTreesScreen
from seqtop.tui.screens.kv.ui_state import Decode, KvSource, KvUiState
from seqtop.tui.settings import format_problems

FRAMES_PER_SECOND = 15
SCREENS: tuple[type[KvScreen], ...] = (KvBlocksScreen, KvTreesScreen)
TABS = [each.TAB for each in SCREENS]
_TUI = Path(__file__).parents[2]
WORDS: dict[str, Notes] = {
    "Words": (
        ("block", "known by the hash of its tokens and of all before them;"),
        ("", "where it lies in memory these events do not tell"),
        ("prefix tree", "all blocks that begin with the same first block"),
        ("stored again", "cached already: computed twice, or reported as reused"),
        ("extended", "stored behind a cached block"),
        ("branched", "stored behind one that is continued otherwise, too"),
        ("GAP", "messages are missing: not all that is shown need be so"),
    )
}


class KvApp(OrderedKeysApp):
    """Shows the prefix cache of one publisher. The caller starts and closes the source.

    Args:
        source: The publisher.
        decode: Decodes token ids, if there is a tokenizer.
        theme_name: The first theme.
        problems: Sentences on invalid settings, shown at the start.
        clock: Returns seconds, for rates.
    """

    CSS_PATH = sorted(_TUI.rglob("*.tcss"))
    DEFAULT_MODE = TABS[0].name
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        *(
            Binding(tab.key, f"go_to({tab.name!r})", tab.title, show=False, id=f"screen.{tab.name}")
            for tab in TABS
        ),
        *APP_KEYS,
    ]

    def __init__(
        self,
        source: KvSource,
        *,
        decode: Decode | None = None,
        theme_name: str | None = None,
        problems: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.title = "seqtop"
        self.ui = KvUiState(source, decode=decode, clock=clock)
        self.animation_level = "none"
        self.register_theme(theme.DARK)
        self.register_theme(theme.LIGHT)
        theme.begin_with(self, theme_name or theme.DARK.name)
        self._problems = problems
        for each in SCREENS:
            self.add_mode(each.TAB.name, partial(each, self.ui, TABS))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.styles(dark=self.current_theme.dark)

    def on_mount(self) -> None:
        signals.install(self)
        self.set_interval(1 / FRAMES_PER_SECOND, self.draw)
        if self._problems:
            self.notify(format_problems(self._problems), severity="warning", markup=False)

    def draw(self) -> None:
        """Shows what has changed."""
        if self.ui.poll():
            for screen in self.screen_stack:
                if isinstance(screen, KvScreen):
                    screen.show()

    def action_go_to(self, name: str) -> None:
        self.switch_mode(name)

    def action_turn_theme(self) -> None:
        self.theme = (theme.LIGHT if self.current_theme.dark else theme.DARK).name

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.screen.active_bindings, WORDS))
