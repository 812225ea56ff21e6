"""Measures the time until the first frame of `seqtop attach`.

The time is from the start of the process, on a pseudo-terminal of 160 × 50, until a whole screen
has been written. The peer is an empty Textual app, measured alternately. The engine is running.
"""

from __future__ import annotations

from benchmarks import running
from benchmarks.feeder import feeding
from benchmarks.figure import Figure, Findings, Growth, Limit, middle
from benchmarks.pseudo_terminal import EMPTY_APP, SIZE, on_terminal
from benchmarks.scenes import Crowd
from seqtop.state import EngineState

TITLE = "Start, to the first frame"
MAX_RATIO = 1.7
SCREENFUL = SIZE[0] * SIZE[1] // 2
"""The number of bytes that only a frame of the whole screen exceeds."""
ROUNDS = 9
SIZES = (10, 100, 1_000)


def measure(*, tiny: bool = False) -> Findings:
    rounds = 1 if tiny else ROUNDS
    ours: list[float] = []
    empty: list[float] = []
    points: list[tuple[float, float]] = []
    with feeding(_state(SIZES[1]), []) as feeder:
        for _ in range(1 + rounds):
            ours.append(_seconds("-m", "seqtop", "attach", feeder.endpoint))
            empty.append(_seconds("-c", EMPTY_APP))
    for size in () if tiny else SIZES:
        with feeding(_state(size), []) as feeder:
            spent = [_seconds("-m", "seqtop", "attach", feeder.endpoint) for _ in range(3)]
        points.append((size, middle(spent) * 1e3))
    value, peer = middle(ours[1:]) * 1e3, middle(empty[1:]) * 1e3
    figure = Figure(
        what="seqtop attach, to a running engine",
        measured=f"wall, median of {rounds} starts",
        value=value,
        unit="ms",
        peer="an empty Textual app",
        peer_value=peer,
        ratio=value / peer,
        ratio_limit=Limit(MAX_RATIO),
        note="Importing ZeroMQ, msgspec and the data model takes all that the target leaves to us."
        " The rest are the first screen's modules and its thirty widgets; Where the time goes has a"
        " table.",
    )
    growth = [Growth("start", "sequences", "ms", points, limit=0.1)]
    return Findings([figure], growth if points else [])


def _state(size: int) -> EngineState:
    state = EngineState()
    for event in Crowd(size).arrivals():
        state.apply(event)
    return state


def _seconds(*arguments: str) -> float:
    with on_terminal(*arguments) as program:
        return program.read_until(SCREENFUL)


if __name__ == "__main__":
    running.alone(measure)
