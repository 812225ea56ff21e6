"""Measures memory and file descriptors of publisher and viewers over a long run.

One process publishes a seeded engine's events at a fixed rate, one viewer stays connected, one
reconnects repeatedly, and from time to time a viewer is killed or stops reading. The resident
memory of each is sampled; after the warm-up its slope (the Theil-Sen estimator, which is robust
against outliers) should be flat.

    python -m tests.release soak --minutes 60
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import combinations
from multiprocessing.synchronize import Event as Flag
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil

from seqtop.history.memory_store import MemoryStore
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.messages import EngineInfo, Step
from tests.support.random_engine import RandomEngine
from tests.support.waiting import SECONDS

SAMPLE_SECONDS = 2.0
WARM_UP = 0.25
"""The part of the run after which caches, pools and the bounded history should be full."""
HISTORY_BYTES = 4 * 2**20
MAX_FINISHED = 500


def publish(endpoint: str, rate: float, ended: Flag, counts: Any) -> None:
    """Publishes about `rate` deltas per second until `ended`."""
    script = iter(
        RandomEngine(1, sys.maxsize, load=96, max_running=64, num_blocks=2_048, budget=512)
    )
    info = next(script)
    assert isinstance(info, EngineInfo)
    start, sent = time.monotonic(), 0
    with MessagePublisher(endpoint, info, EngineState(max_finished=MAX_FINISHED)) as publisher:
        for event in script:
            publisher.publish(event)
            if not isinstance(event, Step):
                continue
            sent += len(event.sequences)
            counts[0], counts[1] = sent, publisher.num_dropped
            ahead = sent / rate - (time.monotonic() - start)
            if ended.wait(ahead) if ahead > 0 else ended.is_set():
                return


def follow(endpoint: str, ended: Flag) -> None:
    """Runs a viewer that stays connected."""
    history = MemoryStore(max_bytes=HISTORY_BYTES, max_events=20_000)
    with Session(endpoint, max_finished=MAX_FINISHED, history=history):
        ended.wait()


def visit(endpoint: str, ended: Flag, counts: Any) -> None:
    """Runs viewers that connect and disconnect, one after another."""
    while not ended.is_set():
        with Session(endpoint, max_finished=MAX_FINISHED) as session:
            if session.wait_for(ConnectionState.LIVE, timeout=30):
                counts[2] += 1
        ended.wait(0.5)


class Soak(NamedTuple):
    """The outcome of a long run."""

    samples: dict[str, list[tuple[float, int, int]]]
    """Time, resident bytes and file descriptors of each process."""
    num_deltas: int
    num_dropped: int
    num_visits: int


def run(seconds: float, rate: float) -> Soak:
    """Runs publisher and viewers for `seconds`; all of them must end by themselves."""
    spawn = multiprocessing.get_context("spawn")
    ended = spawn.Event()
    counts = spawn.Array("q", 3, lock=False)
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        processes = {
            name: spawn.Process(target=target, args=(endpoint, *arguments), daemon=True)
            for name, target, arguments in (
                ("publisher", publish, (rate, ended, counts)),
                ("viewer", follow, (ended,)),
                ("visitor", visit, (ended, counts)),
            )
        }
        for process in processes.values():
            process.start()
        samples = _watch(processes, endpoint, seconds)
        ended.set()
        for name, process in processes.items():
            process.join(SECONDS)
            assert process.exitcode == 0, f"the {name} has not ended by itself"
    return Soak(samples, *counts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=2_100.0, help="deltas per second")
    options = parser.parse_args(arguments)
    seconds = options.minutes * 60
    soak = run(seconds, options.rate)
    print(
        f"{options.minutes:g} minutes, {soak.num_deltas:,} deltas"
        f" ({soak.num_deltas / seconds:,.0f} a second), {soak.num_dropped:,} messages dropped,"
        f" {soak.num_visits:,} visits"
    )
    print(
        f"{'process':<10}{'MB first':>10}{'MB mean':>10}{'MB last':>10}{'MB/hour':>10}{'fds':>12}"
    )
    for name, series in soak.samples.items():
        settled = series[int(len(series) * WARM_UP) :]
        memory = [rss / 2**20 for _, rss, _ in settled]
        fds = [count for *_, count in settled]
        slope = _slope([(at, rss / 2**20) for at, rss, _ in settled]) * 3_600
        print(
            f"{name:<10}{memory[0]:>10.1f}{mean(memory):>10.1f}{memory[-1]:>10.1f}{slope:>+10.2f}"
            f"{f'{min(fds)}-{max(fds)}':>12}"
        )


def _watch(
    processes: dict[str, multiprocessing.context.SpawnProcess], endpoint: str, seconds: float
) -> dict[str, list[tuple[float, int, int]]]:
    """Samples time, resident bytes and descriptors of each process while viewers are disturbed."""
    choose = random.Random(1)
    watched = {name: psutil.Process(process.pid) for name, process in processes.items()}
    samples: dict[str, list[tuple[float, int, int]]] = {name: [] for name in processes}
    start = time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        for name, process in watched.items():
            samples[name].append((now, process.memory_info().rss, process.num_fds()))
        if choose.random() < 0.1:
            _trouble(endpoint, choose)
        time.sleep(SAMPLE_SECONDS)
    return samples


def _trouble(endpoint: str, choose: random.Random) -> None:
    """Stops a viewer for a while, then kills it."""
    command = [sys.executable, "-m", "seqtop", "show", "--follow", "--json", endpoint]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as viewer:
        time.sleep(choose.uniform(0.5, 4.0))
        viewer.send_signal(signal.SIGSTOP)
        time.sleep(choose.uniform(0.0, 5.0))
        viewer.kill()


def _slope(points: list[tuple[float, float]]) -> float:
    """Returns the median of the slopes between pairs of points."""
    thinned = points[:: max(len(points) // 300, 1)]
    return median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(thinned, 2))
