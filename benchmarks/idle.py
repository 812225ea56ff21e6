"""Measures an idle viewer: the engine sends heartbeats only.

The figures are the CPU time of `seqtop attach` on a pseudo-terminal, after its start, and the bytes
that it writes. The peer is an empty Textual app. Viewers of fewer sequences are measured at the
same time.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from benchmarks import running
from benchmarks.figure import Figure, Findings, Growth, Limit
from benchmarks.pseudo_terminal import EMPTY_APP, OnTerminal, on_terminal
from benchmarks.scenes import Crowd
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher

TITLE = "An idle viewer"
MAX_SHARE = 0.01
SECONDS = 20.0
SETTLE_SECONDS = 6.0
"""The time until the rates in the header are 0."""
SIZES = (100, 1_000, 10_000)


def measure(*, tiny: bool = False) -> Findings:
    sizes, seconds, settle = ((10,), 0.5, 1.0) if tiny else (SIZES, SECONDS, SETTLE_SECONDS)
    with ExitStack() as stack:
        empty = stack.enter_context(on_terminal("-c", EMPTY_APP))
        viewers = [
            stack.enter_context(on_terminal("-m", "seqtop", "attach", _engine(stack, size)))
            for size in sizes
        ]
        for program in (empty, *viewers):
            program.read(settle / (1 + len(viewers)))
        *ours, (theirs, _) = _watch([*viewers, empty], seconds)
    spent, written = ours[-1]
    figures = [
        Figure(
            what=f"{sizes[-1]:,} finished sequences on show, heartbeats alone",
            measured=f"CPU over {seconds:g} s",
            value=spent / seconds,
            unit="%",
            limit=Limit(MAX_SHARE),
            peer="an empty Textual app",
            peer_value=theirs / seconds,
            ratio=spent / theirs if theirs else None,
        ),
        Figure(
            what="written to the terminal meanwhile",
            measured=f"bytes in {seconds:g} s",
            value=written,
            unit="bytes",
            limit=Limit(0),
        ),
    ]
    points = [
        (float(size), spent / seconds * 1e3) for size, (spent, _) in zip(sizes, ours, strict=True)
    ]
    growth = [Growth("an idle viewer, CPU a second", "sequences", "ms", points, limit=0.1)]
    return Findings(figures, [] if tiny else growth)


def _engine(stack: ExitStack, size: int) -> str:
    """Returns the endpoint of an engine whose `size` sequences have all finished."""
    endpoint = f"ipc://{stack.enter_context(TemporaryDirectory(prefix='sq'))}/e"
    crowd, started = Crowd(size), time.monotonic()
    state = EngineState(max_finished=size)
    for event in (*crowd.arrivals(), *crowd.ends()):  # before a viewer connects
        state.apply(event)
    stack.enter_context(
        MessagePublisher(
            endpoint, crowd.info, state, clock=lambda: crowd.time + time.monotonic() - started
        )
    )
    return endpoint


def _watch(programs: list[OnTerminal], seconds: float) -> list[tuple[float, int]]:
    """Returns CPU seconds and bytes written by each program over the same `seconds`."""
    before = [(program.cpu_seconds, program.num_bytes) for program in programs]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for program in programs:
            program.read(0.01)
    return [
        (program.cpu_seconds - cpu, program.num_bytes - num_bytes)
        for program, (cpu, num_bytes) in zip(programs, before, strict=True)
    ]


if __name__ == "__main__":
    running.alone(measure)
