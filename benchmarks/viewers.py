"""Measures the time of the engine's thread for publishing a step, by the behaviour of viewers.

One engine publishes a seeded run at a fixed pace. The cases, repeated in turn, are: no viewer, one
viewer, one that has stopped reading, one that requests snapshots as fast as possible, one that
sends commands as fast as possible. Viewers are processes of their own. The figure is the time of
the call that publishes a step.

    python benchmarks/viewers.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import zmq

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import Publisher
from seqtop.wire import codec
from seqtop.wire.messages import Abort, EngineInfo, SnapshotRequest, Step
from tests.support.event_script import EventScript

STEPS_A_SECOND = 100
WARM_UP_SECONDS = 1.0


def watch(endpoint: str) -> None:
    """Runs a viewer that reads."""
    with Session(endpoint) as session:
        session.wait_until(lambda: False, threading.TIMEOUT_MAX)


def stop_reading(endpoint: str) -> None:
    """Runs a viewer whose process is stopped after its start."""
    with Session(endpoint):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGSTOP)


def ask_for_snapshots(endpoint: str) -> None:
    _flood(endpoint, codec.encode(SnapshotRequest()))


def send_commands(endpoint: str) -> None:
    _flood(endpoint, codec.encode(Abort(request_id="nobody")))


def _flood(endpoint: str, question: bytes) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(snapshot_endpoint(endpoint))
    while True:
        socket.send(question)


SCENES: dict[str, Callable[[str], None] | None] = {
    "nobody": None,
    "a viewer": watch,
    "stopped reading": stop_reading,
    "floods snapshots": ask_for_snapshots,
    "floods commands": send_commands,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each scene and round")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    script = iter(
        EventScript(1, sys.maxsize, load=300, max_running=256, num_blocks=8_192, budget=1_024)
    )
    info = next(script)
    assert isinstance(info, EngineInfo)
    info.control = True
    wall: dict[str, list[float]] = {scene: [] for scene in SCENES}
    cpu: dict[str, list[float]] = {scene: [] for scene in SCENES}
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        with Publisher(endpoint, info, EngineState()) as publisher:
            for _ in range(options.rounds):
                for scene, viewer in SCENES.items():
                    process = viewer and spawn.Process(target=viewer, args=(endpoint,), daemon=True)
                    if process:
                        process.start()
                    settled = time.monotonic() + WARM_UP_SECONDS
                    end = settled + options.seconds
                    while (now := time.monotonic()) < end:
                        taken = _step(publisher, script)
                        if now > settled:
                            wall[scene].append(taken[0])
                            cpu[scene].append(taken[1])
                    if process:
                        process.kill()
                        process.join()
            dropped = publisher.num_dropped
    print(f"256 running, {STEPS_A_SECOND} steps a second, {dropped} messages dropped; µs a step")
    print(
        f"{'meanwhile':<18}{'wall p50':>10}{'p99':>10}{'CPU p50':>10}{'p99':>10}{'to nobody':>11}"
    )
    for scene in SCENES:
        figures = [median(wall[scene]), _p99(wall[scene]), median(cpu[scene]), _p99(cpu[scene])]
        ratio = median(cpu[scene]) / median(cpu["nobody"])
        cells = "".join(f"{figure * 1e6:>10.0f}" for figure in figures)
        print(f"{scene:<18}{cells}{ratio:>10.2f}x")


def _step(publisher: Publisher, script: object) -> tuple[float, float]:
    """Publishes up to the next step; returns the wall and CPU seconds that it took."""
    wall = cpu = 0.0
    for event in script:  # type: ignore[attr-defined]
        before, worked = time.perf_counter(), time.thread_time()
        publisher.publish(event)
        publisher.commands()
        cpu += time.thread_time() - worked
        wall += time.perf_counter() - before
        if isinstance(event, Step):
            break
    time.sleep(1 / STEPS_A_SECOND)
    return wall, cpu


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[-1]


if __name__ == "__main__":
    main()
