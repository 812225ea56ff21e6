"""The cost of the adapter for vLLM's EngineCore: absent, dormant and attached.

    python tests/vllm/overhead.py [--load steady|arriving|model] [--scheduling sync|async]

Three loads: 256 requests decode while 200 wait, until the end; 64 seats, for which two requests
arrive before each step, as many as end; and the same with a model that takes 10 ms. The engines of
a row do the same work step by step, each in a process of its own. They take turns every ten steps,
so that whatever else the machine does hits all of them, and a second engine without the adapter
shows how much that still is. In the first two the model takes no time at all, so what is measured
is vLLM's own Python and ours, arrivals and ends included. In the third the engine waits for it, as
for a GPU.
`CPU` is the processor time of the engine's process with all its threads.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.support.engines_in_turns import EngineProcess, Times, figures, ratios_in_rounds

sys.path.insert(0, str(Path(__file__).resolve().parent))

KINDS = ("plain", "control", "dormant", "attached")
"""The first two are without the adapter."""
NUM_ROUNDS, TURNS_PER_ROUND, STEPS_PER_TURN = 8, 10, 10
NUM_OWN_STEPS = 50


class Load(NamedTuple):
    """The work of an engine."""

    num_seats: int
    num_first: int
    """The requests that are there from the beginning."""
    num_arrivals: int
    """The requests that arrive before each step."""
    fewest_tokens: int
    most_tokens: int
    """The tokens of each request: a number from these two on, to these two."""
    num_warm_up: int
    """Steps after which as many run as can."""
    forward_seconds: float = 0.0
    """The time that the model takes for a step."""


LOADS = {
    # More tokens than an engine makes here, so that none ends.
    "steady": Load(256, 456, 0, 950, 950, 20),
    # Two a step for 31 steps each, one of them for the prompt, leave few seats free.
    "arriving": Load(64, 0, 2, 16, 44, 100),
    "model": Load(64, 0, 2, 16, 44, 100, forward_seconds=0.01),
}


class Engine:
    """An EngineCore that is stepped by hand, and how long that took."""

    def __init__(self, load: Load, *, is_async: bool) -> None:
        import token_executor
        from stepping import make_core

        self.core = make_core(
            max_model_len=1024,
            num_gpu_blocks_override=load.num_seats * 65,
            max_num_seqs=load.num_seats,
            max_num_batched_tokens=8192,
            async_scheduling=is_async,
        )
        token_executor.STEP_SECONDS = load.forward_seconds
        self.times: Times = {}
        self._load = load
        self._rng = random.Random(1)
        self._num_added = 0

    def fill(self) -> None:
        """Adds the first requests, and steps until as many run as can."""
        for _ in range(self._load.num_first):
            self._add()
        for _ in range(self._load.num_warm_up):
            self.step()

    def _add(self) -> None:
        from stepping import new_request

        number = self._num_added
        self._num_added += 1
        request = new_request(
            f"cmpl-{number:032x}-0",
            [*range(32), number % 2_000, *range(32)],
            max_tokens=self._rng.randint(self._load.fewest_tokens, self._load.most_tokens),
            request_id=f"cmpl-{number:032x}-0-{number:08x}",
        )
        self.core.add_request(*self.core.preprocess_add_request(request))

    def check(self) -> None:
        """Engines with fewer requests would be faster."""
        load = self._load
        num_running, num_waiting = self.core.scheduler.get_request_counts()
        if load.num_arrivals:
            assert 0.6 * load.num_seats < num_running <= load.num_seats, num_running
        else:
            counts = num_running, num_running + num_waiting
            assert counts == (load.num_seats, load.num_first), counts

    def step(self) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(self._load.num_arrivals):
            self._add()
        _, ran = self.core.step_fn()
        self.core.post_step(ran)
        self.times.setdefault("wall", []).append(time.perf_counter() - wall)
        self.times.setdefault("CPU", []).append(time.process_time() - processor)


class OwnTimes:
    """The CPU seconds of each call of the adapter's own functions."""

    NAMES = ("_after_create", "_before_add", "_after_add", "_before_schedule", "_after_schedule")
    NAMES += ("_before_free", "_after_free", "_after_update")

    def __init__(self) -> None:
        from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver

        self.is_on = False
        """False while the adapter itself is measured: reading the clock costs, too."""
        self.times: Times = {}
        for name in self.NAMES:
            self._replace(SchedulerObserver, name)

    def _replace(self, owner: type, name: str) -> None:
        original, times = getattr(owner, name), self.times.setdefault(name, [])

        def timed(observer: Any, *args: Any, **kwargs: Any) -> None:
            if not self.is_on:
                original(observer, *args, **kwargs)
                return
            start = time.thread_time()
            original(observer, *args, **kwargs)
            times.append(time.thread_time() - start)

        setattr(owner, name, timed)


def serve(connection: Connection, kind: str, load: Load, is_async: bool, endpoint: str) -> None:
    """Runs an engine of one of the `KINDS` in this process."""
    from seqtop.adapters.vllm import hook
    from seqtop.transport.publisher_settings import PublisherSettings

    own = OwnTimes()
    engine, attachment = Engine(load, is_async=is_async), None
    if kind == "attached":
        attachment = hook.follow(engine.core.scheduler, PublisherSettings(bind=endpoint))
    elif kind == "dormant":
        hook.sleep(engine.core.scheduler, PublisherSettings(bind="dormant"))
    engine.fill()
    connection.send(None)
    while num_steps := connection.recv():
        engine.times = {}
        for _ in range(num_steps):
            engine.step()
        engine.check()
        connection.send(engine.times)
    own.is_on = True
    for _ in range(NUM_OWN_STEPS):
        engine.step()
    assert (attachment is not None and attachment.is_attached) is (kind == "attached")
    engine.core.scheduler.shutdown()
    connection.send(own.times)


def measure(load: str, scheduling: str) -> list[str]:
    """Measures all kinds of engines with one load; returns rows of a table."""
    with TemporaryDirectory(prefix="sq") as directory:
        engines = {
            kind: EngineProcess(
                serve, kind, LOADS[load], scheduling == "async", f"ipc://{directory}/{kind}"
            )
            for kind in KINDS
        }
        ratios = ratios_in_rounds(
            engines, num_rounds=NUM_ROUNDS, num_turns=TURNS_PER_ROUND, num_steps=STEPS_PER_TURN
        )
        rows = []
        for unit, base in engines["plain"].times.items():
            cells = [f"{1e3 * median(base):.2f} ms"]
            for kind in KINDS[1:]:
                of_rounds = ratios[kind][unit]
                low, high = min(of_rounds), max(of_rounds)
                cells.append(f"{median(of_rounds):.3f} ({low:.2f} to {high:.2f})")
            rows.append(f"| {load}, {scheduling}, {unit} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
        for kind, engine in engines.items():
            for name, times in engine.close().items():
                if kind == "attached" and len(times) > 1:
                    calls = f"{len(times) / NUM_OWN_STEPS:g} calls a step"
                    print(f"  own functions, CPU, {name}, {calls}: {figures(times)}", flush=True)
    return rows


def main() -> None:
    import vllm

    parser = argparse.ArgumentParser()
    parser.add_argument("--load", action="append", choices=LOADS)
    parser.add_argument("--scheduling", action="append", choices=("sync", "async"))
    options = parser.parse_args()
    rows = [
        row
        for load in options.load or LOADS
        for scheduling in options.scheduling or ("sync", "async")
        for row in measure(load, scheduling)
    ]
    print(f"\nvLLM {vllm.__version__}; medians of {NUM_ROUNDS} rounds, lowest to highest:\n")
    print("| | without, a step | without, again | dormant | attached |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
