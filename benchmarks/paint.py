"""What a frame of the app costs, by how many sequences there are and how many of them change.

Textual's `DataTable` shows the same rows in the same run; the floor is a Line-API widget that
draws as many lines of plain text. Frames are those of a terminal of 160 columns and 50 lines, up to
the bytes that would be written to it; CPU seconds are those of the whole process.

    python benchmarks/paint.py --rows 100 1000 10000 100000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import TypeAlias

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from crowd import Crowd  # noqa: E402  (it lives beside this)
from rich.segment import Segment  # noqa: E402
from textual.app import App, ComposeResult  # noqa: E402
from textual.drivers.headless_driver import HeadlessDriver  # noqa: E402
from textual.scroll_view import ScrollView  # noqa: E402
from textual.strip import Strip  # noqa: E402
from textual.widgets import DataTable  # noqa: E402

from seqtop.tui.app import SeqtopApp  # noqa: E402
from seqtop.tui.settings import Settings  # noqa: E402

SIZE = (160, 50)
FRAME = 1 / 30


class Paper(HeadlessDriver):
    """A terminal that everything is made ready for, and nothing is shown on."""

    written = 0

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        Paper.written += len(data)


class Frames:
    """CPU seconds of one frame after another, the changes before each left out."""

    def __init__(self, app: App[object]) -> None:
        self.cpu: list[float] = []
        self._app = app
        self._painted = asyncio.Event()
        app.post_display_hook = self._painted.set  # type: ignore[method-assign]

    async def settle(self) -> None:
        await asyncio.sleep(0.5)

    async def take(self, change: Callable[[], object], show: Callable[[], object]) -> None:
        change()
        self._painted.clear()
        begin = time.process_time()
        until = time.monotonic() + FRAME
        show()
        with contextlib.suppress(TimeoutError):  # there may be nothing to show
            await asyncio.wait_for(self._painted.wait(), 1)
        await asyncio.sleep(max(until - time.monotonic(), 0.005))
        self.cpu.append(time.process_time() - begin)


async def run(app: App[object], act: Callable[[Frames], Awaitable[None]]) -> list[float]:
    """Run `app` on paper; the CPU seconds of the frames that `act` has taken."""
    app.driver_class = Paper
    frames = Frames(app)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def play() -> None:
        await frames.settle()
        try:
            await act(frames)
        finally:
            app.exit()
            done.set_result(None)

    player = asyncio.create_task(play())
    await app.run_async(size=SIZE)
    await player
    return frames.cpu


async def seqtop(
    rows: int,
    *,
    touched: int | None,
    frames: int,
    sort: str = "",
    wanted: str = "",
    waiting: int = 0,
    steps: int = 1,
) -> list[float]:
    """Frames of the app where `touched` random sequences change a step; `None`: all in sight."""
    crowd = Crowd(rows - waiting, waiting)
    settings = Settings(sort=sort or None, filter=wanted or None, detail=False)
    app = SeqtopApp(crowd, clock=lambda: 0.0, settings=settings)
    rng = random.Random(1)

    def change() -> None:
        for _ in range(steps):
            if touched is None:
                ids = app.feed.view.page(0, SIZE[1])
                ids = [each for each in ids if each < len(crowd.running)]
            else:
                ids = rng.sample(crowd.running, min(touched, len(crowd.running)))
            crowd.apply(crowd.step(ids))

    async def act(taken: Frames) -> None:
        for _ in range(3):
            await taken.take(change, app.draw)
        taken.cpu.clear()
        for _ in range(frames):
            await taken.take(change, app.draw)

    return await run(app, act)


async def data_table(rows: int, *, frames: int) -> list[float]:
    """Frames of a `DataTable` with as many rows, all cells in sight updated."""
    columns = 16

    class Peer(App[None]):
        def compose(self) -> ComposeResult:
            yield DataTable()

    app = Peer()
    number = 0

    def show() -> None:
        nonlocal number
        number += 1
        table = app.query_one(DataTable)
        for row in range(min(SIZE[1] - 1, rows)):
            for column in range(columns):
                table.update_cell(str(row), str(column), f"{number % 1000:>7}")

    async def act(taken: Frames) -> None:
        table = app.query_one(DataTable)
        for column in range(columns):
            table.add_column(f"column {column}", key=str(column), width=7)
        for row in range(rows):
            table.add_row(*["      0"] * columns, key=str(row))
        await asyncio.sleep(0.5)
        await taken.take(lambda: None, show)
        taken.cpu.clear()
        for _ in range(frames):
            await taken.take(lambda: None, show)

    return await run(app, act)


async def floor(*, frames: int) -> list[float]:
    """Frames of a widget that draws a screenful of one span a line."""

    class Plain(ScrollView):
        number = 0

        def render_line(self, y: int) -> Strip:
            return Strip([Segment(f"{self.number + y:>160}")], SIZE[0])

    class Peer(App[None]):
        def compose(self) -> ComposeResult:
            yield Plain()

    app = Peer()

    def show() -> None:
        widget = app.query_one(Plain)
        widget.number += 1
        widget.refresh()

    async def act(taken: Frames) -> None:
        for _ in range(frames):
            await taken.take(lambda: None, show)

    return await run(app, act)


Scene: TypeAlias = Callable[[], Awaitable[list[float]]]


def scenes_of(rows: int, frames: int) -> dict[str, Scene]:
    """The app with so many rows: what changes in it, and how they are sorted and filtered."""
    scenes: dict[str, Scene] = {
        "all in sight change": partial(seqtop, rows, touched=None, frames=frames),
        "one changes": partial(seqtop, rows, touched=1, frames=frames),
    }
    for touched in (each for each in (256, 1024) if each < rows):
        live = partial(seqtop, rows, touched=touched, frames=frames)
        scenes[f"{touched} change, by life"] = live
        scenes[f"{touched} change, by out, filtered"] = partial(
            live, sort="out", wanted="out>0 fox"
        )
        scenes[f"{touched} change, by tok/s, filtered"] = partial(live, sort="tps", wanted="out>0")
    if rows > 256:
        scenes["all but 256 wait, by queue time, 256 change"] = partial(
            seqtop, rows, touched=256, frames=4 * frames, sort="queue", waiting=rows - 256, steps=2
        )
    return {f"{rows} rows, {name}": scene for name, scene in scenes.items()}


def told(what: str, cpu: list[float]) -> float:
    if len(cpu) > 1:
        p99 = quantiles(cpu, n=100, method="inclusive")[98]
        print(
            f"{what:<64}{median(cpu) * 1e3:>9.2f}{p99 * 1e3:>9.2f}{max(cpu) * 1e3:>9.2f}",
            flush=True,
        )
    else:
        print(f"{what:<64}{cpu[0] * 1e3:>9.2f}", flush=True)
    return median(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--no-table", action="store_true", help="leave the DataTable out")
    parser.add_argument("--only", default="", help="scenes whose names have this in them")
    options = parser.parse_args()
    print(f"CPU ms a frame, {SIZE[0]} by {SIZE[1]}{'p50':>43}{'p99':>9}{'max':>9}")
    scenes = {"floor: a screenful of plain lines": partial(floor, frames=options.frames)}
    for rows in options.rows:
        scenes |= scenes_of(rows, options.frames)
        if not options.no_table:
            frames = max(1, min(10, 20_000 // rows))
            peer = partial(data_table, rows, frames=frames)
            scenes[f"{rows} rows, DataTable.update_cell of all in sight"] = peer
    for name, scene in scenes.items():
        if options.only in name:
            gc.collect()
            told(name, asyncio.run(scene()))


if __name__ == "__main__":
    main()
