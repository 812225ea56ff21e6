"""The cost of an adapter: engines with and without it, each in its process, take turns."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.support.waiting import wait_until

Times = dict[str, list[float]]
"""The seconds of each step, by what was measured."""


class EngineProcess:
    """A process with one engine.

    Args:
        serve: Runs an engine: sends `None` when it is ready, for each number of steps that it
            receives their times, and for the number 0 the times of the adapter's own functions.
        arguments: Arguments of `serve` after the connection.
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, other = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(other, *arguments))
        self._process.start()
        other.close()
        self._connection.recv()
        self.times: Times = {}

    def run(self, num_steps: int) -> None:
        self._connection.send(num_steps)
        for name, times in self._connection.recv().items():
            self.times.setdefault(name, []).extend(times)

    def close(self) -> Times:
        """Returns the times of the adapter's own functions."""
        self._connection.send(0)
        own: Times = self._connection.recv()
        self._process.join()
        return own


def measure(
    one: EngineProcess, plain: EngineProcess, title: str, num_turns: int, num_steps: int
) -> None:
    """Runs two engines in turns of so many steps, and prints their times."""
    one.times.clear()
    plain.times.clear()
    for turn in range(num_turns):
        for engine in (one, plain) if turn % 2 else (plain, one):
            engine.run(num_steps)
    for name, off in plain.times.items():
        on = one.times[name]
        ratios = [
            median(on[first : first + num_steps]) / median(off[first : first + num_steps])
            for first in range(0, len(on), num_steps)
        ]
        print(
            f"{title}, {name}: {len(on)} steps of each; without it {figures(off)}, with it"
            f" {figures(on)}; ratio of the medians {median(on) / median(off):.3f}, median ratio of"
            f" neighbouring turns {median(ratios):.3f}",
            flush=True,
        )


Ratios = dict[str, dict[str, list[float]]]
"""By engine and by what was measured, the ratio to the plain engine in each round."""


def ratios_in_rounds(
    engines: dict[str, EngineProcess], *, num_rounds: int, num_turns: int, num_steps: int
) -> Ratios:
    """Runs engines in turns that do the same work step by step, and compares them with `plain`.

    Args:
        engines: By name, among them `plain`.
        num_rounds: Rounds, of each of which the median of its turns is taken.
        num_turns: Turns of each engine in a round.
        num_steps: Steps of a turn.
    """
    names, rng = list(engines), random.Random(1)
    for _ in range(num_rounds * num_turns):
        # At random, as a publisher may still be busy in the turn after that of its engine.
        for name in rng.sample(names, len(names)):
            engines[name].run(num_steps)
    ratios: Ratios = {}
    for name, engine in engines.items():
        for unit, base in engines["plain"].times.items():
            sums, base_sums = (
                [sum(times[at : at + num_steps]) for at in range(0, len(times), num_steps)]
                for times in (engine.times[unit], base)
            )
            of_turns = [on / off for on, off in zip(sums, base_sums, strict=True)]
            ratios.setdefault(name, {})[unit] = [
                median(of_turns[at : at + num_turns]) for at in range(0, len(of_turns), num_turns)
            ]
    return ratios


def figures(times: list[float]) -> str:
    """Returns the tenth percentile, the median and the 99th percentile, as text."""
    percentiles = quantiles(times, n=100)
    low, middle, high = (1e3 * percentiles[percent - 1] for percent in (10, 50, 99))
    return f"p10 {low:.3f} ms, median {middle:.3f} ms, p99 {high:.3f} ms"


def measure_followed(
    followed: EngineProcess, plain: EngineProcess, directory: str, num_turns: int, num_steps: int
) -> None:
    """Measures an engine that publishes at `e` in a directory, without and with a viewer."""
    measure(followed, plain, "without a viewer", num_turns, num_steps)
    command = [sys.executable, "-m", "seqtop", "record", f"ipc://{directory}/e"]
    recording = Path(directory, "r")
    with subprocess.Popen([*command, "-o", recording], stdout=subprocess.DEVNULL) as viewer:
        wait_until(recording.exists)  # it is begun when the viewer has its first state
        measure(followed, plain, "a viewer looks on", num_turns, num_steps)
        viewer.terminate()
    plain.close()
    for name, times in followed.close().items():
        print(f"the adapter's own functions, CPU, {name}: {figures(times)}", flush=True)
