"""The cost of the adapter per step of SGLang: real schedulers, followed, dormant or neither.

    python tests/sglang/overhead.py [--turns N] [--page-size N] [--dormant]

256 requests run and 200 wait, in each scheduler as many until the end. Each has a process of its
own and its real event loop, and two of them take turns every few steps, so that whatever else the
machine does hits both. `CPU` is the processor time of the scheduler's thread, which other programs
cannot add to, with the model, which has 0.15 million parameters. On a GPU, a step takes longer.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.engines_in_turns import EngineProcess, Times, measure, measure_followed

sys.path.insert(0, str(Path(__file__).resolve().parent))

NUM_RUNNING, NUM_WAITING = 256, 200
STEPS_PER_TURN, NUM_WARM_UP = 5, 10
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


def serve(connection: Connection, kind: str, page_size: int, endpoint: str = "") -> None:
    """Runs a scheduler in this process: `followed`, `dormant` or `plain`."""
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
            times: Times = {name: [] for name in KINDS}
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
    connection.send({"a step": own_times})
    os._exit(0)


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
            plain = EngineProcess(serve, "plain", page_size)
            if options.dormant:
                dormant = EngineProcess(serve, "dormant", page_size)
                measure(dormant, plain, "dormant", num_turns, STEPS_PER_TURN)
                dormant.close()
            followed = EngineProcess(serve, "followed", page_size, f"ipc://{directory}/e")
            measure_followed(followed, plain, directory, num_turns, STEPS_PER_TURN)


if __name__ == "__main__":
    main()
