"""The app for engines that publish KV-cache events: blocks, and no requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from textual.binding import Binding

from seqtop.kv.screens import KvBlocksScreen, KvScreen, KvTreesScreen
from seqtop.kv.ui_state import KvSource, KvUiState, TokenDecoder
from seqtop.tui.base_app import BaseApp
from seqtop.tui.keymap import APP_KEYS, Notes

FRAMES_PER_SECOND = 15
SCREENS: tuple[type[KvScreen], ...] = (KvBlocksScreen, KvTreesScreen)
TABS = [screen.TAB for screen in SCREENS]
WORDS: dict[str, Notes] = {
    "Words": (
        ("block", "identified by the hash of its tokens and of all before;"),
        ("", "these events do not say where it is in memory"),
        ("prefix tree", "all blocks that begin with the same first block"),
        ("stored again", "cached already: computed twice, or reported as reused"),
        ("extended", "stored as the continuation of a cached block"),
        ("branched", "stored as another continuation of a cached block"),
        ("GAP", "messages were missed: the display may be wrong"),
    )
}


class KvApp(BaseApp):
    """Shows the prefix cache of one publisher. The caller starts and closes the source.

    Args:
        source: The publisher.
        decode: Decodes token ids, if there is a tokenizer.
        theme_name: The first theme.
        problems: Sentences on invalid settings, shown at the start.
        clock: Returns seconds, for rates.
    """

    CSS_PATH = [*BaseApp.CSS_PATH, Path(__file__).with_name("screens.tcss")]  # noqa: RUF012
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
        decode: TokenDecoder | None = None,
        theme_name: str | None = None,
        problems: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(theme_name=theme_name, problems=problems)
        self.title = "seqtop"
        self.ui = KvUiState(source, decode=decode, clock=clock)
        for screen in SCREENS:
            self.add_mode(screen.TAB.name, partial(screen, self.ui, TABS))

    def help_notes(self) -> Mapping[str, Notes]:
        return WORDS

    def on_mount(self) -> None:
        self.set_interval(1 / FRAMES_PER_SECOND, self.draw)

    def draw(self) -> None:
        """Draws the changes since the last call."""
        if not self.is_terminal_behind and self.ui.poll():
            for screen in self.screen_stack:
                if isinstance(screen, KvScreen):
                    screen.show()
