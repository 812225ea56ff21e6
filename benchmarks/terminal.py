"""Apps on a terminal that is as large as wanted and takes everything at once.

Everything but the terminal itself is as users have it: escape sequences are made for every frame
(Textual's own headless mode leaves that out), and then counted and dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.app import App
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

SIZE = (160, 50)


_LONGEST_CONTROL = 32
"""Shorter writes only say where a frame begins and ends."""


class CountingDriver(HeadlessDriver):
    """Counts what is written to the terminal."""

    num_characters = 0
    num_frames = 0
    painted: asyncio.Event

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.painted = asyncio.Event()

    is_on_show = False
    """Until then, the app takes it for none: what it asks of a real terminal is not here."""

    @property
    def is_headless(self) -> bool:
        return not self.is_on_show

    def write(self, data: str) -> None:
        self.num_characters += len(data)
        if len(data) > _LONGEST_CONTROL:
            self.num_frames += 1
            self.painted.set()

    def flush(self) -> None:
        pass


@asynccontextmanager
async def shown(app: App[Any], size: tuple[int, int] = SIZE) -> AsyncIterator[Pilot[Any]]:
    """Run `app`; within, it has come to rest."""
    app.driver_class = CountingDriver
    async with app.run_test(headless=False, size=size) as pilot:
        await pilot.pause()
        assert isinstance(app._driver, CountingDriver)
        app._driver.is_on_show = True
        app.screen.refresh()
        await pilot.pause()
        yield pilot


async def frame(
    app: App[Any], change: Callable[[], object], before: Callable[[], object] = lambda: None
) -> float:
    """CPU seconds of the process from `change`, which makes a frame due, to that frame written.

    What `before` does does not count. Nothing comes between the two, as the app's own timer would.
    """
    driver = app._driver
    assert isinstance(driver, CountingDriver)
    await asyncio.sleep(0.002)
    before()
    driver.painted.clear()
    started = time.process_time()
    change()
    await asyncio.wait_for(driver.painted.wait(), 60)
    await asyncio.sleep(0)
    return time.process_time() - started
