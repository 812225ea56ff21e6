"""Measures a seek to a random position of the history, in memory and in a file.

A seeded run is recorded. Random positions are sought in a `MemoryStore`, in the recording's file
and, as the peer, by applying every event from the start (for a few positions, as it takes long).
The states are compared with the peer's for those positions.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import running
from benchmarks.figure import Figure, Findings, Growth, Limit, middle, percentile
from benchmarks.scenes import decoding
from seqtop.history import FileStore, FileWriter
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState
from seqtop.wire import codec
from tests.support.recordings import append, fed

TITLE = "Going back: seek"
MAX_MS = 100.0
MAX_FINISHED = 10_000  # the limit of a viewer
RUNNING = 64
SIZES = (100, 1_000, 10_000)
NUM_SEEKS = 200
NUM_FROM_START = 3


def measure(*, tiny: bool = False) -> Findings:
    points: list[tuple[float, float]] = []
    for size in SIZES[:1] if tiny else SIZES:
        figures = _figures(size, 5 if tiny else NUM_SEEKS)
        points.append((size, figures[-1].value))
    growth = [Growth("p95 of a seek in a file", "steps", "ms", points, limit=0.3)]
    return Findings(figures, [] if tiny else growth)


def _figures(num_steps: int, num_seeks: int) -> list[Figure]:
    draw = random.Random(0)
    payloads = [codec.encode(event) for event in decoding(RUNNING, num_steps)]
    positions = [draw.randrange(1, len(payloads) + 1) for _ in range(num_seeks)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "run.seqtop")
        history = MemoryStore()
        append(history, payloads, EngineState(max_finished=MAX_FINISHED))
        with FileWriter(path) as writer:
            append(writer, payloads, EngineState(max_finished=MAX_FINISHED))
        with FileStore(path) as recording:
            spent = {
                "in memory": _seconds(history.at, positions),
                "in a file": _seconds(recording.at, positions),
            }
            few = positions[:NUM_FROM_START]
            from_start = []
            for position in few:
                started = time.thread_time()
                wanted = fed(payloads[:position], max_finished=MAX_FINISHED)
                from_start.append(time.thread_time() - started)
                if not history.at(position) == recording.at(position) == wanted:
                    raise AssertionError(f"the state found at {position} is another one")
    peer = middle(from_start) * 1e3
    return [
        Figure(
            what=f"{num_steps:,} steps of {RUNNING} sequences, {where}",
            measured=f"CPU, p95 of {num_seeks}; median {middle(seconds) * 1e3:.1f} ms",
            value=percentile(seconds, 95) * 1e3,
            unit="ms",
            limit=Limit(MAX_MS),
            peer="every event applied from the start",
            peer_value=peer,
            ratio=peer / (percentile(seconds, 95) * 1e3),
        )
        for where, seconds in spent.items()
    ]


def _seconds(find: Callable[[int], EngineState], positions: Sequence[int]) -> list[float]:
    """Returns the CPU seconds of each seek; states are discarded at once, as in a viewer."""
    spent = []
    for position in positions:
        started = time.thread_time()
        find(position)
        spent.append(time.thread_time() - started)
    return spent


if __name__ == "__main__":
    running.alone(measure)
