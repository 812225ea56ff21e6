"""Measures a frame with 10,000 live sequences, sorted and filtered.

Between two frames a step adds a token to 256 of them, which changes their order. The figure is the
CPU time of the process from the poll to the escape sequences, on a terminal of 160 × 50. The peer
is a frame of the same app with 256 sequences. The second figure is a frame of the overview, whose
charts show the history of as many sequences.

The same frames are drawn three times, and the least time of each counts: so the percentiles are
those of what the app does, and not of the moments in which the machine does something else.
"""

from __future__ import annotations

import asyncio
import random

from benchmarks import running, terminal
from benchmarks.figure import Figure, Findings, Growth, Limit, middle, percentile
from benchmarks.scenes import Crowd, ScriptedSource
from seqtop.history.memory_store import MemoryStore
from seqtop.state.filter import parse
from seqtop.state.ordering import Sort
from seqtop.tui.app import SeqtopApp

TITLE = "Paint, 10,000 sequences live, sorted and filtered"
MAX_MS = 16.0
MAX_OVERVIEW_MS = 21.0
LIVE = 10_000
SIZES = (1_000, LIVE, 100_000)
RUNNING = 256
ROUNDS = 300
WARM_UP = 20
RUNS = 3


def measure(*, tiny: bool = False) -> Findings:
    sizes, rounds = (SIZES[:1], 5) if tiny else (SIZES, ROUNDS)
    few = _least(RUNNING, rounds)
    frames = {size: _least(size, rounds) for size in sizes}
    live = sizes[0] if tiny else LIVE
    value = percentile(frames[live], 99) * 1e3
    peer = percentile(few, 99) * 1e3
    figure = Figure(
        what=f"{live:,} live, by output tokens, filtered by prompt and id",
        measured=_described(frames[live]),
        value=value,
        unit="ms",
        limit=Limit(MAX_MS),
        peer=f"the same app with {RUNNING} live",
        peer_value=peer,
        ratio=peer / value,
    )
    overview = _least(live, rounds, overview=True)
    charts = Figure(
        what=f"{live:,} live, the overview open",
        measured=_described(overview),
        value=percentile(overview, 99) * 1e3,
        unit="ms",
        limit=Limit(MAX_OVERVIEW_MS),
    )
    points = [(float(size), percentile(times, 99) * 1e3) for size, times in frames.items()]
    growth = [Growth("p99 of a frame, sorted and filtered", "live", "ms", points, limit=0.1)]
    return Findings([figure, charts], growth if len(sizes) > 1 else [])


def _described(times: list[float]) -> str:
    count, median = len(times), middle(times) * 1e3
    return f"CPU a frame, p99 of {count}, each the least of {RUNS} runs; median {median:.1f} ms"


def _least(size: int, rounds: int, *, overview: bool = False) -> list[float]:
    """Returns the least CPU seconds of each frame in several runs of the same frames."""
    runs = [asyncio.run(_frames(size, rounds, overview=overview)) for _ in range(RUNS)]
    return [min(times) for times in zip(*runs, strict=True)]


async def _frames(size: int, rounds: int, *, overview: bool) -> list[float]:
    crowd, draw = Crowd(size), random.Random(0)
    history = MemoryStore() if overview else None
    app = SeqtopApp(source := ScriptedSource(*crowd.arrivals(), history=history), clock=lambda: 0.0)
    async with terminal.shown(app) as pilot:
        app._refresher.stop()  # frames are drawn on request only
        app.ui.sort_by(Sort("out", descending=True))
        app.ui.filter_by(parse("prompt>100 id:req"))
        if overview:
            await pilot.press("6")
        app.draw()
        await pilot.pause()

        def step() -> None:
            source.apply(crowd.step(draw.sample(range(size), min(RUNNING, size))))

        spent = [await terminal.frame(app, app.draw, step) for _ in range(WARM_UP + rounds)]
    return spent[WARM_UP:]


if __name__ == "__main__":
    running.alone(measure)
