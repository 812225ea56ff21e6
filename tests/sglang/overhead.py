"""The cost of the adapter per step of SGLang: real schedulers, followed, dormant or neither.

    python tests/sglang/overhead.py [--turns N] [--page-size N] [--dormant]

256 requests run and 200 wait, in each scheduler as many until the end. Each has a process of its
own and its real event loop, and two of them take turns every few steps, so that whatever else the
machine does hits both. `CPU` is the processor time of the scheduler's thread, which other programs
cannot add to, with the model, which has 0.15 million parameters. On a GPU, a step takes longer.
Figures are printed as they come, so that it can be ended at any time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

NUM_RUNNING, NUM_WAITING = 256, 200
STEPS_PER_TURN, NUM_WARM_UP, TURNS_PER_LINE = 5, 10, 20
NUM_TOKENS = 900
"""The tokens of each request: more than an engine makes here, so that none ends."""
MAX_TURNS = (NUM_TOKENS - NUM_WARM_UP) // STEPS_PER_TURN // 3
KINDS = ("wall", "CPU")


class OwnTimes:
    """The CPU seconds of the adapter's own functions in each step."""

    NAMES = (
        "_after_input",
        "_before_schedule",
        "_before_run",
        "_after_run",
        "_before_process",
        "_after_process",
    )

    def __init__(self) -> None:
        from seqtop.adapters.sglang.scheduler_observer import SchedulerObserver

        self.is_on = False
        """False while the adapter itself is measured: reading the clock costs, too."""
        self.seconds = 0.0
        for name in self.NAMES:
            self._replace(SchedulerObserver, name)

    def _replace(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def timed(observer: Any, *args: Any, **kwargs: Any) -> None:
            if not self.is_on:
                original(observer, *args, **kwargs)
                return
            start = time.thread_time()
            original(observer, *args, **kwargs)
            self.seconds += time.thread_time() - start

        setattr(owner, name, timed)


def serve(connection: Connection, kind: str, endpoint: str, page_size: int) -> None:
    """Runs a scheduler in this process: steps it on request, and sends back the times."""
    from stepping import generate, make_scheduler, run_loop

    from seqtop.adapters.sglang import hook
    from seqtop.transport.publisher_settings import PublisherSettings

    scheduler = make_scheduler(
        max_total_tokens=NUM_RUNNING * 1024,
        page_size=page_size,
        chunked_prefill_size=8192,
        max_running_requests=NUM_RUNNING,
    )
    attachment, own = None, OwnTimes()
    if kind == "followed":
        attachment = hook.follow(scheduler, PublisherSettings(bind=endpoint, tokenizer=""))
    elif kind == "dormant":
        hook.sleep(scheduler, PublisherSettings(bind="dormant"))

    def turns() -> Iterator[list[Any]]:
        yield [
            generate(scheduler, f"{number:032x}", [2 + number % 900, *range(2, 66)], NUM_TOKENS)
            for number in range(NUM_RUNNING + NUM_WAITING)
        ]
        for _ in range(NUM_WARM_UP):
            yield []
        connection.send(None)
        while num_steps := connection.recv():
            times: dict[str, list[float]] = {name: [] for name in KINDS}
            for _ in range(num_steps):
                start = time.perf_counter(), time.thread_time()
                yield []
                for name, before, after in zip(
                    KINDS, start, (time.perf_counter(), time.thread_time()), strict=True
                ):
                    times[name].append(after - before)
            assert len(scheduler.running_batch.reqs) == NUM_RUNNING
            assert len(scheduler.waiting_queue) == NUM_WAITING
            connection.send(times)
        own.is_on = True
        for _ in range(STEPS_PER_TURN * 5):
            own.seconds = 0.0
            yield []
            own_times.append(own.seconds)
        assert attachment is None or attachment.is_attached

    own_times: list[float] = []
    run_loop(scheduler, turns())
    connection.send(own_times)
    os._exit(0)


class EngineProcess:
    """A process with one scheduler: `followed`, `dormant` or `plain`."""

    def __init__(self, kind: str, page_size: int, endpoint: str = "") -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, other = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(other, kind, endpoint, page_size))
        self._process.start()
        other.close()
        self._connection.recv()
        self.times: dict[str, list[float]] = {}

    def run(self, num_steps: int) -> None:
        self._connection.send(num_steps)
        for name, times in self._connection.recv().items():
            self.times.setdefault(name, []).extend(times)

    def close(self) -> list[float]:
        """Returns the times of the adapter's own functions."""
        self._connection.send(0)
        own: list[float] = self._connection.recv()
        self._process.join()
        return own


def measure(one: EngineProcess, plain: EngineProcess, title: str, num_turns: int) -> None:
    one.times.clear()
    plain.times.clear()
    for turn in range(num_turns):
        for engine in (one, plain) if turn % 2 else (plain, one):
            engine.run(STEPS_PER_TURN)
        if (turn + 1) % TURNS_PER_LINE == 0 or turn + 1 == num_turns:
            report(one.times, plain.times, title)


def report(with_it: dict[str, list[float]], without: dict[str, list[float]], title: str) -> None:
    for name in KINDS:
        on, off = with_it[name], without[name]
        ratios = [
            median(some) / median(others)
            for some, others in zip(turns_of(on), turns_of(off), strict=True)
        ]
        print(
            f"{title}, {name}: {len(on)} steps of each; without it {figures(off)}, with it"
            f" {figures(on)}; ratio of the medians {median(on) / median(off):.3f}, median ratio of"
            f" neighbouring turns {median(ratios):.3f}",
            flush=True,
        )


def figures(times: list[float]) -> str:
    tenth = quantiles(times, n=10)[0]
    return f"p10 {1e3 * tenth:.3f} ms, median {1e3 * median(times):.3f} ms"


def turns_of(times: list[float]) -> list[list[float]]:
    return [times[first : first + STEPS_PER_TURN] for first in range(0, len(times), STEPS_PER_TURN)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=40, help=f"of each engine, up to {MAX_TURNS}")
    parser.add_argument("--page-size", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--dormant", action="store_true", help="measure a dormant engine, too")
    options = parser.parse_args()
    num_turns = min(options.turns, MAX_TURNS)
    for page_size in options.page_size:
        print(f"Pages of {page_size}; {NUM_RUNNING} requests run, {NUM_WAITING} wait", flush=True)
        with TemporaryDirectory(prefix="sq") as directory:
            endpoint = f"ipc://{directory}/e"
            plain = EngineProcess("plain", page_size)
            if options.dormant:
                dormant = EngineProcess("dormant", page_size)
                measure(dormant, plain, "dormant", num_turns)
                dormant.close()
            followed = EngineProcess("followed", page_size, endpoint)
            measure(followed, plain, "without a viewer", num_turns)
            command = [sys.executable, "-m", "seqtop", "record", endpoint, "-o", f"{directory}/r"]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as viewer:
                _await(Path(directory, "r"))
                measure(followed, plain, "a viewer looks on", num_turns)
                viewer.terminate()
            plain.close()
            print(f"the adapter's own functions, CPU: {figures(followed.close())}", flush=True)


def _await(path: Path) -> None:
    """The recording is begun when the viewer has its first state."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


if __name__ == "__main__":
    main()
