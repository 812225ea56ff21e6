"""The base class of the apps: themes, signals, and the keys that work everywhere."""

import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from textual.binding import Binding
from textual.command import Provider
from textual.driver import Driver
from textual.events import Resize
from textual.geometry import Size

from seqtop.process import files
from seqtop.text.sanitize import safe_line
from seqtop.tui import signals, theme
from seqtop.tui.keymap import Notes
from seqtop.tui.ordered_keys import OrderedKeysApp
from seqtop.tui.rendering import strips
from seqtop.tui.settings import format_problems

MAX_WIDTH: Final = 2000
"""The most columns that are drawn. What Textual keeps of a screen grows with its size, which may be
65,535 by 65,535, or any number in the variables COLUMNS and LINES."""
MAX_HEIGHT: Final = 1000
"""The most lines that are drawn."""


def _palette_commands() -> type[Provider]:
    from seqtop.tui.dialogs.palette import PaletteCommands  # imported when it is opened

    return PaletteCommands


def _sized_by_input(driver: type[Driver]) -> type[Driver]:
    """Returns a driver that takes the terminal's size from standard input.

    Textual takes it from standard output, of which a pipe has none: 80 by 24.
    """
    if not hasattr(driver, "_get_terminal_size") or "COLUMNS" in os.environ:
        return driver

    class SizedByInput(driver):  # type: ignore[misc, valid-type]
        def _get_terminal_size(self) -> tuple[int, int]:
            try:
                return os.get_terminal_size(self.fileno)
            except OSError:
                return super()._get_terminal_size()  # type: ignore[no-any-return]

    return SizedByInput


class BaseApp(OrderedKeysApp):
    """An app with seqtop's styles and themes.

    Args:
        theme_name: The first theme; `None` for the dark one.
        problems: Sentences on invalid settings, shown at the start.
    """

    COMMANDS = {_palette_commands}  # noqa: RUF012 (Textual's own spelling)
    CSS_PATH = sorted(Path(__file__).parent.rglob("*.tcss"))

    def __init__(self, *, theme_name: str | None, problems: Sequence[str]) -> None:
        super().__init__()
        strips.install()
        self._problems = problems
        self.animation_level = "none"
        # Textual draws on standard error; a page or a picture has all colours.
        color_system = self.console.color_system if sys.stderr.isatty() else None
        if self.no_color:
            color_system = "none"
        for each in (theme.DARK, theme.LIGHT):
            self.register_theme(theme.for_terminal(each, color_system))
        theme.begin_with(self, theme_name or theme.DARK.name)

    def get_driver_class(self) -> type[Driver]:
        return _sized_by_input(super().get_driver_class())

    @property
    def size(self) -> Size:
        """The size of the terminal, or as much of it as is drawn on."""
        return _limited(super().size)

    @property
    def is_terminal_behind(self) -> bool:
        """True while the terminal has not taken all that was written to it."""
        # Textual has no public way to tell. Its thread takes one string at a time off the queue.
        writer = getattr(self._driver, "_writer_thread", None)
        return writer is not None and not writer._queue.empty()

    def on_resize(self, event: Resize) -> None:
        """Limits the size; Textual's own handler of the event runs after this one."""
        event.size = _limited(event.size)
        event.virtual_size = _limited(event.virtual_size)

    def on_notify(self) -> None:
        """Removes the notice before: several would cover the screen. Textual adds the new one."""
        self.clear_notifications()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.styles(dark=self.current_theme.dark)

    def get_key_display(self, binding: Binding) -> str:
        # Textual's sign for it has no form in ASCII that one recognizes.
        return "enter" if binding.key == "enter" else super().get_key_display(binding)

    def help_notes(self) -> Mapping[str, Notes]:
        """Returns the notes below the keys in the help, by title."""
        return {}

    def on_mount(self) -> None:
        signals.install(self)
        if self._problems:
            self.notify(format_problems(self._problems), severity="warning", markup=False)
        self.call_after_refresh(_enable_collector)  # `run_app` has disabled it

    def deliver_screenshot(
        self,
        filename: str | None = None,
        path: str | None = None,
        time_format: str | None = None,
    ) -> str | None:
        """Saves a screenshot in the working directory, as `R` does a recording.

        Textual's own choice is a folder for downloads, which servers do not have.
        """
        if self.is_web:
            return super().deliver_screenshot(filename, path, time_format)
        name = filename or time.strftime("seqtop-%Y%m%d-%H%M%S.svg")
        target = Path(path or Path.cwd(), name)
        try:
            with files.writing(target, overwrite=True) as file:
                file.write(self.export_screenshot().encode())
        except OSError as error:
            text = f"The screenshot was not saved: {error.strerror or error}."
            self.notify(safe_line(text), severity="error", markup=False)
            return None
        self.notify(safe_line(f"Saved the screen as {name}."), markup=False)
        return None

    def action_go_to(self, name: str) -> None:
        self.switch_mode(name)

    def action_turn_theme(self) -> None:
        self.theme = (theme.LIGHT if self.current_theme.dark else theme.DARK).name

    def action_help(self) -> None:
        from seqtop.tui.dialogs.help import HelpScreen

        self.push_screen(HelpScreen(self.screen.active_bindings, self.help_notes()))


def _enable_collector() -> None:
    """Enables the garbage collector, with thresholds that suit an app in which little is garbage.

    A full collection stops the app for 0.1 to 0.4 s where 10,000 sequences are live. With Python's
    thresholds there is one every few seconds, with these none in ten minutes. The younger
    generations take most of their time for the block tables of the sequences, each of which is a
    new list when it gets a block. Collected after 1,000 objects, they stop the app for 6 ms at
    most, but a frame has as many, and full collections come twice a minute.
    What exists at the start (modules, classes, the first screen) stays, and is left out.
    """
    if gc.isenabled():
        return  # `run_app` does not run this app
    gc.freeze()
    gc.set_threshold(5_000, 1, 60)
    gc.enable()


def _limited(size: Size) -> Size:
    return Size(min(size.width, MAX_WIDTH), min(size.height, MAX_HEIGHT))
