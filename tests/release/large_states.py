"""Measures viewers that join an engine with very many waiting requests, or one very long prompt.

    python -m tests.release large_states --requests 100000 --characters 10000000

Prints the CPU time and the memory of the publisher, of a viewer, and of `seqtop show`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import RequestArrived
from tests.support.commands import SEQTOP
from tests.support.events import arrival, engine_info, stats, step

_TOKENS, _CHARACTERS = 100, 500
"""The prompt of each of many requests."""
_TIMEOUT = 900.0
_BATCH, _SECONDS_BETWEEN = 2_000, 1.5
"""The arrivals that are published at once, so that the queue has room for them."""


class Joined(NamedTuple):
    """A viewer that has the state."""

    num_requests: int
    longest_prompt: int
    """Characters."""
    seconds: float
    cpu: float
    megabytes: float


def _arrivals(count: int, characters: int) -> Iterator[RequestArrived]:
    num_tokens, length = (characters // 4, characters) if characters else (_TOKENS, _CHARACTERS)
    for number in range(1, count + 1):
        request = arrival(number)
        request.num_prompt_tokens = num_tokens
        request.prompt_token_ids = Ints.of(range(num_tokens))
        request.prompt = ("word " * length)[:length]
        yield request


def join(endpoint: str) -> None:
    """Joins an engine, and prints what it took."""
    started, used = time.monotonic(), time.process_time()
    with Session(endpoint) as session:
        session.await_engine(_TIMEOUT)
        requests = session.state.requests.values()
        longest = max(len(request.prompt or "") for request in requests)
        seconds, cpu = time.monotonic() - started, time.process_time() - used
        memory = psutil.Process().memory_info().rss / 2**20
        print(len(requests), longest, f"{seconds:.2f}", f"{cpu:.2f}", f"{memory:.0f}")


def measure(count: int, characters: int = 0) -> Joined:
    """Publishes `count` requests, or one of so many characters, and lets viewers join."""
    with TemporaryDirectory(prefix="sq") as folder:
        endpoint = f"ipc://{folder}/engine"
        with MessagePublisher(endpoint, engine_info(), EngineState()) as publisher:
            for number, request in enumerate(_arrivals(count, characters), 1):
                publisher.publish(request)
                if number % _BATCH == 0:
                    time.sleep(_SECONDS_BETWEEN)
            publisher.publish(step(0, stats=stats(num_waiting=count)))
            assert publisher.num_dropped == 0, publisher.last_error
            command = [sys.executable, "-m", "tests.release.large_states", "--join", endpoint]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            numbers = said.split()
            viewer = Joined(int(numbers[0]), int(numbers[1]), *map(float, numbers[2:]))
            _print("viewer", f"{viewer.cpu:.1f} s of CPU, {viewer.megabytes:.0f} MB")
            output = Path(folder, "output")
            with output.open("wb") as file:
                shown = subprocess.Popen(
                    [*SEQTOP, "show", endpoint, "--timeout", str(_TIMEOUT)], stdout=file
                )
                _, status, usage = os.wait4(shown.pid, 0)
            assert status == 0
            cpu = usage.ru_utime + usage.ru_stime
            _print("seqtop show", f"{cpu:.1f} s of CPU, {usage.ru_maxrss >> 10} MB")
            used = psutil.Process()
            times = used.cpu_times()
            cpu, memory = times.user + times.system, used.memory_info().rss >> 20
            _print("publisher, and who publishes", f"{cpu:.1f} s of CPU, {memory} MB")
    return viewer


def _print(name: str, figures: str) -> None:
    print(f"  {name:<30} {figures}", flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="large_states")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--characters", type=int, default=10_000_000)
    parser.add_argument("--join", metavar="ENDPOINT", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.join is not None:
        join(options.join)
        return
    print(f"a prompt of {options.characters:,} characters")
    measure(1, options.characters)
    print(f"{options.requests:,} waiting requests")
    measure(options.requests)


if __name__ == "__main__":
    main(sys.argv[1:])
