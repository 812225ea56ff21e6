"""The base class of screens with a tab."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from seqtop.tui.chrome.footer import KeyFooter
from seqtop.tui.chrome.tabs import ScreenTabs, Tab
from seqtop.tui.keymap import Notes
from seqtop.tui.laid_out_once import LaidOutOnce
from seqtop.tui.rendering.style import STYLE_CLASSES

SHORT = 16
"""Below this height the tabs are not shown, and the header gives a line to the body."""
FRAMED_WIDTH, FRAMED_HEIGHT = 80, 24
"""The size of a terminal from which on panels have frames. In less, each line is needed."""

AnyWidget = TypeVar("AnyWidget", bound=Widget)


class TabbedScreen(LaidOutOnce, Screen[None]):
    """A screen with a header, a line of tabs for all screens of the app, a body and a footer.

    A subclass gives its `TAB` and yields its widgets from `body`.

    Args:
        tabs: The tabs of all screens of the app.
        header: The widget above the tabs.
        notices: Widgets between the tabs and the body.
    """

    TAB: ClassVar[Tab]
    """The screen's key, name and title."""
    WORDS: ClassVar[Notes] = ()
    """Titles and words that are on the screen, and their meanings, for the help."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("tab", "app.focus_next", "Go to the next pane", show=False, id="move.next"),
        Binding("shift+tab", "app.focus_previous", "Go back a pane", show=False, id="move.back"),
        Binding(
            "super+c",
            "screen.copy_text",
            "Copy the selected text",
            show=False,
            key_display="⌘c" if sys.platform == "darwin" else "Super c",
            id="app.copy",
        ),
    ]
    COMPONENT_CLASSES = STYLE_CLASSES

    def __init__(self, tabs: Sequence[Tab], header: Widget, *notices: Widget) -> None:
        super().__init__()
        self._above_body = (header, ScreenTabs(tabs, self.TAB.name), *notices)
        self._footer = KeyFooter()
        self._panels: list[tuple[Widget, Mapping[str, str]]] = []
        # Before anything is styled: every later change styles all widgets again.
        self._set_size_classes(update=False)
        # The app has read the style sheets of all screens. For a new one, Textual would parse them
        # twice again, and style all widgets.
        self._css_update_count = self.app._css_update_count

    def panel(
        self,
        widget: AnyWidget,
        title: str,
        keys: Mapping[str, str] | None = None,
        *,
        is_main: bool = False,
    ) -> AnyWidget:
        """Makes a widget a panel: a part of the screen in a frame, where there is room for one.

        Args:
            widget: The widget, which is returned.
            title: The text in the upper border.
            keys: For the lower border the words for actions, by the ids of their keys' bindings;
                several ids, separated by spaces, can share a word.
            is_main: Whether the widget has no title where there is no room for a frame; others
                have it on a line above them.
        """
        widget.add_class("panel", *(["-main"] if is_main else []), update=False)
        widget.border_title = Content(title)
        self._panels.append((widget, keys or {}))
        return widget

    def compose(self) -> ComposeResult:
        yield from self._above_body
        yield from self.body()
        yield self._footer

    def body(self) -> Iterable[Widget]:
        """Returns the widgets between the tabs and the footer."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.call_after_refresh(self._show_keys)  # those of the focused widget, too

    def on_resize(self) -> None:
        self._set_size_classes(update=True)

    def size_classes(self, width: int, height: int) -> dict[str, bool]:
        """Returns which of the classes that follow from the terminal's size the screen has."""
        return {
            "-short": height < SHORT,
            "-framed": width >= FRAMED_WIDTH and height >= FRAMED_HEIGHT,
        }

    def _set_size_classes(self, *, update: bool) -> None:
        for name, is_set in self.size_classes(*self.app.size).items():
            self.set_class(is_set, name, update=update)

    @property
    def line_width(self) -> int:
        """The cells of a line of a panel across the screen, without a blank at each end."""
        return max(self.app.size.width - (4 if self.has_class("-framed") else 2), 1)

    async def on_event(self, event: events.Event) -> None:
        # What changes the styles of a screen changes them while it is hidden, too, or is counted by
        # the app (a theme): Textual computes all of them again at each switch.
        if isinstance(event, events.ScreenResume):
            event.refresh_styles = False
        await super().on_event(event)

    def on_screen_resume(self) -> None:
        self.resume()  # Textual calls the handlers of all base classes, so that one overrides none

    def resume(self) -> None:
        """Draws what has changed while another screen or a dialog was open."""
        raise NotImplementedError

    def _show_keys(self) -> None:
        """Shows the keys of the panels in their lower borders."""
        bound: dict[str | None, str] = {}
        for active in self.active_bindings.values():
            bound.setdefault(active.binding.id, self.app.get_key_display(active.binding))
        for panel, keys in self._panels:
            parts: list[Content | str | tuple[str, str]] = []
            for ids, word in keys.items():
                signs = " ".join(bound[name] for name in ids.split() if name in bound)
                if signs:
                    parts += ["  " if parts else "", (signs, "bold $footer-key-foreground")]
                    parts.append(f" {word}")
            panel.border_subtitle = Content.assemble(*parts) if parts else None
