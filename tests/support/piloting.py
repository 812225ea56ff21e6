"""Drive the app in a test and read its screen."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from textual import events
from textual.app import App
from textual.keys import _character_to_key
from textual.pilot import Pilot

from seqtop.kv.app import KvApp
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens import TABS
from seqtop.tui.screens.engine_screen import EngineScreen
from tests.support.waiting import SECONDS, described

Play = Callable[[Pilot[int]], Awaitable[None]]
KEYS = {"\r": "enter", "\x1b": "escape", "\t": "tab", "\x7f": "backspace", "↓": "down"}
SCREENS = tuple(map(EngineScreen.of, TABS))


def play(app: SeqtopApp | KvApp, act: Play, size: tuple[int, int] = (100, 30)) -> None:
    """Run the app in a terminal of `size` while `act` presses keys and looks."""

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            app.draw()
            await pilot.pause()
            await act(pilot)

    asyncio.run(run())


def screen(app: App[int]) -> str:
    """What stands on the terminal, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def burst(app: App[int], keys: str) -> None:
    """Press keys without a pause between them, as a paste or a script does."""
    for key in keys:
        name = KEYS.get(key) or _character_to_key(key)
        app.post_message(events.Key(name, None if key in KEYS else key))


async def checked(app: SeqtopApp, pilot: Pilot[int]) -> None:
    """Wait until all that is on record has been checked, which was asked for, and is shown."""
    await until(
        pilot, lambda: app.ui.checks.checker is not None and not app.ui.checks.checker.is_behind
    )
    app.draw()
    await pilot.pause()


async def until(
    pilot: Pilot[int], condition: Callable[[], bool], otherwise: str = "it never came true"
) -> None:
    """Wait for something that a thread or a timer makes true.

    If it never comes, the test fails, and says `otherwise`, the condition and what is on the
    screen.
    """
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{otherwise}: {described(condition)}\n{screen(pilot.app)}")
        await asyncio.sleep(0.005)
        await pilot.pause()


def selected(app: SeqtopApp) -> str:
    assert app.ui.selection is not None
    return app.ui.selection[0].request_id


def notices(app: App[int]) -> list[str]:
    return [notice.message for notice in app._notifications]
