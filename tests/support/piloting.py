"""Drive the app in a test and read its screen."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import textual.pilot
from textual import events
from textual.app import App
from textual.keys import _character_to_key

from seqtop.kv.app import KvApp
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens import TABS
from seqtop.tui.screens.engine_screen import EngineScreen
from tests.support import settling
from tests.support.waiting import SECONDS, described, pauses

T = TypeVar("T")
KEYS = {"\r": "enter", "\x1b": "escape", "\t": "tab", "\x7f": "backspace", "↓": "down"}
SCREENS = tuple(map(EngineScreen.of, TABS))


class Pilot:
    """Textual's pilot without `await`: each method runs the app until it has come to rest.

    Between them the app stands still, and a test may do what code of the app may.

    Args:
        runner: Runs the app.
        pilot: The pilot of the app.
    """

    def __init__(self, runner: asyncio.Runner, pilot: textual.pilot.Pilot[Any]) -> None:
        self._runner = runner
        self._pilot = pilot
        self.app: Any = pilot.app

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run the app until `awaitable` is done."""

        async def run() -> T:
            return await awaitable

        asyncio._set_running_loop(None)
        try:
            return self._runner.run(run())
        finally:
            asyncio._set_running_loop(self._runner.get_loop())

    def press(self, *keys: str) -> None:
        self.run(self._pilot.press(*keys))

    def pause(self) -> None:
        self.run(self._pilot.pause())

    def draw(self) -> None:
        """Draw what has changed, without waiting for the next frame."""
        self.app.draw()
        self.pause()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Other methods of Textual's pilot: `click`, `hover`, `resize_terminal` …"""
        method = getattr(self._pilot, name)
        return lambda *args, **options: self.run(method(*args, **options))


@contextmanager
def play(app: App[Any], size: tuple[int, int] = (100, 30)) -> Iterator[Pilot]:
    """Run the app in a terminal of `size`."""
    # A slow machine may take longer than a notice stays.
    stay = patch.object(app, "NOTIFICATION_TIMEOUT", SECONDS)
    with asyncio.Runner() as runner, stay:
        running = app.run_test(size=size, tooltips=True, notifications=True)
        pilot = Pilot(runner, runner.run(running.__aenter__()))
        try:
            with app._context():
                pilot.pause()
                if isinstance(app, SeqtopApp | KvApp):
                    pilot.draw()
                yield pilot
                if app._running:
                    settling.render(app)
        finally:
            asyncio._set_running_loop(None)
            runner.run(running.__aexit__(None, None, None))


def screen(app: App[Any]) -> str:
    """The text of the terminal, line by line."""
    return "\n".join(strip.text for strip in settling.render(app))


def inside(lines: Iterable[str]) -> list[str]:
    """The lines of a screen without the frames at its edges."""
    return [line.removeprefix("│").removesuffix("│") for line in lines]


def rows(app: App[Any]) -> list[str]:
    """The lines of the screen, without the frames at its edges."""
    return inside(screen(app).splitlines())


def words(app: App[Any]) -> str:
    """The text of the terminal, with one blank between two words, without frames."""
    return " ".join(screen(app).replace("│", " ").split())


def burst(app: App[Any], keys: str) -> None:
    """Press keys without a pause between them, as a paste or a script does."""
    for key in keys:
        name = KEYS.get(key) or _character_to_key(key)
        app.post_message(events.Key(name, None if key in KEYS else key))


def checked(app: SeqtopApp, pilot: Pilot) -> None:
    """Wait until all that is on record has been checked, which was asked for, and is shown."""
    until(pilot, lambda: app.ui.checks.checker is not None)
    until(pilot, lambda: not app.ui.checks.checker.replay.is_behind)
    pilot.draw()


def until(
    pilot: Pilot, condition: Callable[[], bool], otherwise: str = "it never came true"
) -> None:
    """Wait for something that a thread or a timer makes true.

    If it never comes, the test fails, and says `otherwise`, the condition and what is on the
    screen.
    """
    deadline = time.monotonic() + SECONDS
    intervals = pauses()
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{otherwise}: {described(condition)}\n{screen(pilot.app)}")
        pilot.run(asyncio.sleep(next(intervals)))
        pilot.pause()


def selected(app: SeqtopApp) -> str:
    assert app.ui.selection is not None
    return app.ui.selection[0].request_id


def notices(app: App[Any]) -> list[str]:
    return [notice.message for notice in app._notifications]
