"""How long it takes to go to a moment of the past, in memory and in a file.

    python benchmarks/seek.py [--steps 10000] [--running 64]

Records a seeded run and seeks 200 random moments: in a `History`, in the recording's file, and,
as the peer, by applying every event from the start (a few moments only: it takes long). Each state
found by seeking is compared with the peer's for those moments. Times are milliseconds; where other
processes want the cores too, the CPU's are those that mean something.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # for the script of events

from event_script import EventScript

from seqtop.recording import Recording, RecordingWriter
from seqtop.state import EngineState
from seqtop.state.history import History
from seqtop.wire import codec, parse

MAX_FINISHED = 10_000  # what a viewer keeps
NUM_SEEKS = 200
NUM_FROM_START = 5


def main() -> None:
    options = _options()
    draw = random.Random(0)
    payloads = [codec.encode(event) for event in _script(options.steps, options.running)]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores,"
          f" load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")  # fmt: skip
    print(
        f"{options.steps:,} steps of {options.running} running sequences: {len(payloads):,} events,"
        f" {sum(map(len, payloads)) / 1e6:.1f} MB"
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "run.seqtop")
        history = _record(payloads, path)
        positions = [draw.randrange(1, len(payloads) + 1) for _ in range(NUM_SEEKS)]
        started = time.perf_counter()
        with Recording(path) as recording:
            opened = time.perf_counter() - started
            print(f"file {path.stat().st_size / 1e6:.1f} MB, opened in {opened * 1e3:.1f} ms;"
                  f" history {history.num_bytes / 1e6:.1f} MB")  # fmt: skip
            _time("history", positions, history.at)
            _time("file", positions, recording.at)
            # Last, for its states are many objects that the garbage collector would visit.
            few = positions[:NUM_FROM_START]
            wanted = _time("from the start", few, lambda position: _from_start(payloads, position))
            for position, state in zip(few, wanted, strict=True):
                assert history.at(position) == recording.at(position) == state
    print("the states found are equal")


def _script(steps: int, running: int) -> EventScript:
    return EventScript(
        1,
        steps,
        load=running + running // 4,
        max_running=running,
        num_blocks=running * 40,
        budget=running * 8,
        prompt=(20, 300),
        output=(50, 400),
    )


def _record(payloads: Sequence[bytes], path: Path) -> History:
    state, history = EngineState(max_finished=MAX_FINISHED), History()
    applying = keeping = writing = 0.0
    with RecordingWriter(path) as writer:
        for number, payload in enumerate(payloads):
            started = time.perf_counter()
            event = parse.event(payload)
            state.apply(event)
            applied = time.perf_counter()
            history.append(number, payload, event, state)
            kept = time.perf_counter()
            writer.append(number, payload, event, state)
            written = time.perf_counter()
            applying += applied - started
            keeping += kept - applied
            writing += written - kept
    each = 1e6 / len(payloads)
    print(
        f"per event: {applying * each:.0f} µs to decode and apply,"
        f" {keeping * each:.0f} µs to keep in the history, {writing * each:.0f} µs to write"
    )
    return history


def _from_start(payloads: Sequence[bytes], position: int) -> EngineState:
    state = EngineState(max_finished=MAX_FINISHED)
    for payload in payloads[:position]:
        state.apply(parse.event(payload))
    return state


def _time(
    name: str, positions: Sequence[int], find: Callable[[int], EngineState]
) -> list[EngineState]:
    """Find every state and print how long that took; returns them if they are few."""
    found: list[EngineState] = []
    wall, cpu = [], []
    for position in positions:
        started, worked = time.perf_counter(), time.thread_time()
        state = find(position)
        wall.append((time.perf_counter() - started) * 1e3)
        cpu.append((time.thread_time() - worked) * 1e3)
        if len(positions) <= NUM_FROM_START:
            found.append(state)
    for clock, times in (("wall", wall), ("cpu", cpu)):
        first = times[0]
        times.sort()
        p50, p95 = (times[int(len(times) * part)] for part in (0.5, 0.95))
        print(
            f"{name:>15} {clock:4}: p50 {p50:8.1f}  p95 {p95:8.1f}  max {times[-1]:8.1f}"
            f"  first {first:8.1f}  ({len(times)} seeks)"
        )
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--running", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    main()
