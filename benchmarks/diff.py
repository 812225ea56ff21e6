"""Measures `seqtop diff` of two recordings, from the start of the command to its end.

Two seeded runs are recorded that are equal up to the last events, so that all steps are compared.
The peer is the reading of both recordings: each event is read, checked and decoded, nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from benchmarks import running
from benchmarks.figure import Figure, Findings, Growth, Limit, middle
from benchmarks.scenes import decoding
from seqtop.history import FileStore, FileWriter
from seqtop.state import EngineState
from seqtop.wire import codec
from tests.support.recordings import append

TITLE = "Comparing two recordings: diff"
MAX_SECONDS = 5.0
RUNNING = 8
SIZES = (10_000, 100_000)
ROUNDS = 3


def measure(*, tiny: bool = False) -> Findings:
    points: list[tuple[float, float]] = []
    for size in (500,) if tiny else SIZES:
        figure = _figure(size, 1 if tiny else ROUNDS)
        points.append((size, figure.value))
    growth = [Growth("diff", "steps", "s", points, limit=1.1)]
    return Findings([figure], [] if tiny else growth)


def _figure(num_steps: int, rounds: int) -> Figure:
    with tempfile.TemporaryDirectory() as directory:
        a, b = (Path(directory, name) for name in ("a.seqtop", "b.seqtop"))
        payloads = [codec.encode(event) for event in decoding(RUNNING, num_steps)]
        for path, script in ((a, payloads), (b, payloads[:-10])):
            with FileWriter(path) as writer:
                append(writer, script, EngineState())
        spent, spent_reading = [], []
        for _ in range(rounds):
            started = time.perf_counter()
            result = subprocess.run(
                [sys.executable, "-m", "seqtop", "diff", str(a), str(b)],
                stdout=subprocess.DEVNULL,
                check=False,
            )
            spent.append(time.perf_counter() - started)
            if result.returncode != 1:
                raise AssertionError(f"exit status {result.returncode}, not 1: the runs differ")
            started = time.perf_counter()
            for path in (a, b):
                with FileStore(path) as recording:
                    deque(recording.events(recording.first, recording.last), maxlen=0)
            spent_reading.append(time.perf_counter() - started)
    value, peer = middle(spent), middle(spent_reading)
    return Figure(
        what=f"two runs of {num_steps:,} steps of {RUNNING} sequences",
        measured=f"wall, median of {rounds}",
        value=value,
        unit="s",
        limit=Limit(MAX_SECONDS),
        peer="the events of both are read",
        peer_value=peer,
        ratio=peer / value,
    )


if __name__ == "__main__":
    running.alone(measure)
