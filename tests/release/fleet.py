"""Finds the sick one among many engines, some of which are killed and started again.

Each engine is a process that publishes the random load of a simulated one at a fixed rate. After a
while one of them hangs: it still sends heartbeats. Others are killed before and after, and some of
these are started again. `seqtop attach` watches all of them on a pseudo-terminal. Printed are, for
each round, the seconds until the sick engine was the first of the list, the processor time and the
memory of the viewer, and the bytes that it gets a second from an engine that nobody looks at.

    python -m tests.release fleet --engines 20 --rounds 20
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.messages import EngineInfo, Step
from tests.support.commands import SEQTOP
from tests.support.random_engine import RandomEngine
from tests.support.terminal import Terminal
from tests.support.waiting import SECONDS

RATE = 8.0
"""Steps a second of each engine, unless another number is given."""
SIZE = (160, 45)
MOST_SECONDS = 10.0
"""The seconds within which the sick engine has to be the first."""
_SETTLED = 8.0
"""Seconds in which all engines are well."""


def publish(endpoint: str, name: str, seed: int, hangs: Flag, rate: float) -> None:
    """Publishes `rate` steps a second; while `hangs` is set, only heartbeats."""
    script = iter(RandomEngine(seed, sys.maxsize, load=12, max_running=8, num_blocks=256))
    info = next(script)
    assert isinstance(info, EngineInfo)
    info = msgspec.structs.replace(info, engine_id=name, incarnation=f"{name}-{os.getpid()}")
    now, at = info.start_time, time.monotonic()
    state = EngineState()
    with MessagePublisher(
        endpoint, info, state, clock=lambda: now + time.monotonic() - at
    ) as publisher:
        for event in script:
            publisher.publish(event)
            if isinstance(event, Step):
                now, at = event.time, time.monotonic()
                time.sleep(1 / rate)
                while hangs.is_set():
                    time.sleep(0.1)


class Outcome(NamedTuple):
    """One round."""

    seconds: float
    """The seconds from the fault to the first place, infinite if it was not reached."""
    cpu: float
    """The share of a core that the viewer took."""
    num_bytes: int
    """The resident memory of the viewer."""
    bytes_per_second: float
    """The bytes of the summaries of one engine."""


def run(num_engines: int, seed: int, rate: float = RATE) -> Outcome:
    """Runs one round, with so many steps a second of each engine."""
    rng, context = random.Random(seed), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # a hundred imports would take a minute
    with tempfile.TemporaryDirectory(prefix="sq") as folder:
        os.environ |= {"XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder}
        endpoints = [f"ipc://{folder}/{number}" for number in range(num_engines)]
        flags = [context.Event() for _ in endpoints]

        def start(number: int) -> multiprocessing.process.BaseProcess:
            name, flag = f"engine-{number}", flags[number]
            arguments = (endpoints[number], name, seed + number, flag, rate)
            process = context.Process(target=publish, args=arguments, daemon=True)
            process.start()
            return process

        engines = [start(number) for number in range(num_engines)]
        app = Terminal(*SEQTOP, "attach", *endpoints, size=SIZE, cwd=Path(folder))
        try:
            app.wait_until(lambda: f"{num_engines} live" in app.text)
            viewer = psutil.Process(app.process.pid)
            sick, killed, restarted, late, other = rng.sample(range(num_engines), 5)
            summarized = Session(endpoints[other], is_subscribed=False)
            summarized.start()
            before, began = sum(viewer.cpu_times()[:2]), time.monotonic()
            _watch(app, _SETTLED / 2)
            for number in (killed, restarted):
                engines[number].kill()
            _watch(app, _SETTLED / 2)
            engines[restarted] = start(restarted)
            flags[sick].set()
            fell_ill = time.monotonic()
            _watch(app, 1.0)
            engines[late].kill()
            found = float("inf")
            while found > MOST_SECONDS and time.monotonic() < fell_ill + SECONDS:
                _watch(app, 0.1)
                if _first(app) == f"engine-{sick}":
                    found = time.monotonic() - fell_ill
            cpu, seconds = sum(viewer.cpu_times()[:2]) - before, time.monotonic() - began
            num_bytes = summarized.connection.num_bytes / seconds
            summarized.close()
            return Outcome(found, cpu / seconds, viewer.memory_info().rss, num_bytes)
        finally:
            app.close()
            for engine in engines:
                engine.kill()


def _watch(app: Terminal, seconds: float) -> None:
    """Reads the app's terminal for a while."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        app.read(min(left, 0.1))


def _first(app: Terminal) -> str:
    """Returns the name of the engine in the first row."""
    rows = (line for line in app.text.splitlines() if "engine-" in line)
    return next((word for word in next(rows, "").split() if "engine-" in word), "").lstrip("│▌")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=RATE, help="steps a second of each engine")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    outcomes = []
    for number in range(options.rounds):
        outcomes.append(own := run(options.engines, options.seed + 1_000 * number, options.rate))
        print(
            f"{number}: first after {own.seconds:.1f} s; viewer {own.cpu:.0%} of a core,"
            f" {own.num_bytes / 1e6:.0f} MB, {own.bytes_per_second:.0f} bytes/s of an engine",
            flush=True,
        )
    near = sum(own.seconds <= MOST_SECONDS for own in outcomes)
    print(f"{near} of {len(outcomes)} within {MOST_SECONDS:g} s, with {options.engines} engines")


if __name__ == "__main__":
    main()
