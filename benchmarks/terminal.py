"""Apps on a simulated terminal of any size.

Everything except the terminal is as for users: escape sequences are generated for every frame
(which Textual's headless mode omits), then counted and discarded.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from textual.app import App
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

from seqtop.tui.base_app import BaseApp

SIZE = (160, 50)


_LONGEST_CONTROL = 32
"""Shorter writes only mark the start and the end of a frame."""


class CountingDriver(HeadlessDriver):
    """A driver that counts the bytes written to the terminal."""

    num_characters = 0
    num_frames = 0
    painted: asyncio.Event

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.painted = asyncio.Event()

    is_on_show = False
    """False until then: the app's queries to a real terminal have no answer here."""

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
    """Runs `app` and yields when it is idle."""
    app.driver_class = CountingDriver
    with _collector_of(app):
        async with app.run_test(headless=False, size=size) as pilot:
            await pilot.pause()
            assert isinstance(app._driver, CountingDriver)
            app._driver.is_on_show = True
            app.screen.refresh()
            await pilot.pause()
            yield pilot


@contextmanager
def _collector_of(app: App[Any]) -> Iterator[None]:
    """Runs the garbage collector as it runs for users of `app`, and ends with Python's settings."""
    thresholds = gc.get_threshold()
    if isinstance(app, BaseApp):
        gc.disable()  # as `run_app` does; the app enables it after its first frame
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.enable()


async def frame(
    app: App[Any], change: Callable[[], object], before: Callable[[], object] = lambda: None
) -> float:
    """Returns the CPU seconds of the process from `change` until the frame is written.

    The time of `before` is not included. The app's own timer does not run.
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
