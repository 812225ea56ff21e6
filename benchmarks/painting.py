"""Measures a frame in which every row has changed.

The app and Textual's `DataTable` show the same rows and columns on a terminal of 160 × 50. The
figure is the CPU time of the process from the change to the escape sequences: for the table,
`update_cell` for every changed cell and what follows; for seqtop, a poll and what follows. (Events
are applied before; `benchmarks.ingest` measures that.) The cases are: every visible row has
changed, every row has changed, one row has changed. At the largest size, the first and the last are
also compared with Textual's own part of such a frame.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Sequence

from textual.app import App, ComposeResult
from textual.widgets import DataTable

from benchmarks import ready_lines, running, terminal
from benchmarks.figure import Figure, Findings, Growth, Limit, middle
from benchmarks.scenes import Crowd, ScriptedSource
from seqtop.state.fields import DEFAULT_COLUMNS, FIELDS
from seqtop.tui.app import SeqtopApp

TITLE = "Paint, all cells changing"
MAX_MS = 12.0
"""A third of the time between two frames, on a processor of 2024; the page names this one."""
SIZES = (100, 1_000, 10_000, 100_000)
AGE = 60.0
"""Seconds for which the engine has run. With one that has just begun, the charts would have another
axis in each frame."""
ROUNDS = 60
WARM_UP = 5
FLAT = 0.1
"""The steepest slope that counts as flat."""
NOTES = {
    "every row in sight": "Half of it is making the texts of the rows and of the detail pane,"
    " which all have changed, and painting them; the rest goes through Textual's compositor.",
    "one row": "Half of it is Textual's own way from a widget that asks to be drawn to the"
    " terminal, which the line on ready-made lines shows.",
}
"""The explanation of the limit, printed if it is exceeded."""


class TableApp(App[None]):
    """The peer: a `DataTable` with the same rows."""

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        yield DataTable[str]()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for key in DEFAULT_COLUMNS:
            table.add_column(FIELDS[key].title, key=key)
        for number, row in enumerate(self._rows):
            table.add_row(*row, key=str(number))

    def change(self, round_: int, num_rows: int) -> None:
        """Changes every cell of the first rows."""
        table = self.query_one(DataTable)
        for row in range(min(num_rows, len(self._rows))):
            for index, key in enumerate(DEFAULT_COLUMNS):
                table.update_cell(str(row), key, f"{round_ * 7 + index + row:>7}")


def measure(*, tiny: bool = False) -> Findings:
    sizes = SIZES[:1] if tiny else SIZES
    rounds = 3 if tiny else ROUNDS
    figures: list[Figure] = []
    points: dict[str, list[tuple[float, float]]] = {}
    for size in sizes:
        ours = asyncio.run(_seqtop(size, rounds))
        theirs = asyncio.run(_peer(size, rounds))
        gc.collect()
        figures += [
            _figure("every row in sight", size, ours, theirs, Limit(MAX_MS)),
            _figure("one row", size, ours, theirs, Limit(MAX_MS)),
            _figure("every row", size, ours, theirs, None),
        ]
        if size == sizes[-1]:
            every, one = asyncio.run(ready_lines.frames(rounds, WARM_UP))
            figures += [
                _beside_textual("every row in sight", size, ours, every),
                _beside_textual("one row", size, ours, one),
            ]
        for what, frames in ours.items():
            points.setdefault(f"a frame, {what} changed", []).append((size, middle(frames) * 1e3))
        peer = middle(theirs["every row"]) * 1e3
        points.setdefault("DataTable's, every row changed", []).append((size, peer))
    limits = {"a frame, every row in sight changed": FLAT, "a frame, one row changed": FLAT}
    growth = [
        Growth(what, "rows", "ms", series, limits.get(what, 1.05))
        for what, series in points.items()
    ]
    return Findings(figures, growth if len(sizes) > 1 else [])


def _figure(
    what: str,
    size: int,
    ours: dict[str, list[float]],
    theirs: dict[str, list[float]],
    limit: Limit | None,
) -> Figure:
    value, peer = middle(ours[what]) * 1e3, middle(theirs[what]) * 1e3
    return Figure(
        what=f"{what} of {size:,} changed",
        measured=f"CPU a frame, median of {len(ours[what])}",
        value=value,
        unit="ms",
        limit=limit,
        peer=f"DataTable.update_cell, {len(theirs[what])} frames",
        peer_value=peer,
        ratio=peer / value,
        note=NOTES.get(what, "") if limit else "",
    )


def _beside_textual(
    what: str, size: int, ours: dict[str, list[float]], theirs: list[float]
) -> Figure:
    value, peer = middle(ours[what]) * 1e3, middle(theirs) * 1e3
    return Figure(
        what=f"{what} of {size:,} changed: Textual's own part",
        measured=f"CPU a frame, median of {len(ours[what])}",
        value=value,
        unit="ms",
        peer=f"as many lines, ready-made, {len(theirs)} frames",
        peer_value=peer,
        ratio=peer / value,
        ratio_unit="%",
    )


async def _seqtop(size: int, rounds: int) -> dict[str, list[float]]:
    """Returns the CPU seconds of frames, by the kind of change."""
    crowd = Crowd(size)
    app = SeqtopApp(source := ScriptedSource(*crowd.arrivals()), clock=lambda: 0.0)
    found: dict[str, list[float]] = {}

    async def show(what: str, numbers: Sequence[int], count: int) -> None:
        spent = [
            await terminal.frame(app, app.draw, lambda: source.apply(crowd.step(numbers)))
            for _ in range(WARM_UP + count)
        ]
        found[what] = spent[min(WARM_UP, count - 1) :]

    crowd.time += AGE
    source.apply(crowd.step(()))
    async with terminal.shown(app):
        app._refresher.stop()  # frames are drawn on request only
        visible = app.ui.view.page(0, terminal.SIZE[1])
        await show("every row in sight", visible, rounds)
        await show("one row", visible[7:8], rounds)
        await show("every row", range(size), max(min(rounds, 20_000 // size), 2))
    return found


async def _peer(size: int, rounds: int) -> dict[str, list[float]]:
    table = [
        [f"{number + index:>7}" for index in range(len(DEFAULT_COLUMNS))] for number in range(size)
    ]
    app = TableApp(table)
    found: dict[str, list[float]] = {}
    turn = itertools.count(1)

    async def show(what: str, num_rows: int, count: int) -> None:
        warm_up = min(1, count - 1)
        spent = [
            await terminal.frame(app, lambda: app.change(next(turn), num_rows))
            for _ in range(warm_up + count)
        ]
        found[what] = spent[warm_up:]

    async with terminal.shown(app):
        await show("every row in sight", terminal.SIZE[1], min(rounds, 15))
        await show("one row", 1, min(rounds, 15))
        await show("every row", size, max(min(rounds, 5_000 // size), 1))
    return found


if __name__ == "__main__":
    running.alone(measure)
