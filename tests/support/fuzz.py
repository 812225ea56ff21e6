"""Feeds mutated inputs to everything that reads from the network or from a file.

A reader may refuse an input with the one exception that it promises, or accept it, however odd it
is. What is accepted is applied, checked and shown like any other input. Any other exception ends
the run with the input that caused it, and so does an input that takes more than a minute.
"""

from __future__ import annotations

import gc
import importlib
import random
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import psutil

KINDS = ("wire", "recordings", "requests", "kv_events", "http", "models")

Feed = Callable[[], bool]
"""Feeds one input; returns whether it got past the decoder."""

INPUTS_PER_ROUND = 2_000
_HANG_SECONDS = 60.0
"""Processor time, since a busy machine says nothing of an input."""


@dataclass
class Result:
    """Counts inputs, those past the decoder, and the memory after each round in bytes."""

    num_inputs: int = 0
    num_past_decoder: int = 0
    memory: list[int] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.num_past_decoder / self.num_inputs


def run(kind: str, count: int, seed: int, stopped: Callable[[], bool] = lambda: False) -> Result:
    """Feeds `count` inputs of a kind; the same arguments give the same inputs.

    Args:
        kind: One of `KINDS`.
        count: The number of inputs.
        seed: Determines the inputs.
        stopped: Returns true to end after the present round.
    """
    module = importlib.import_module(f"tests.support.fuzz_{kind}")
    start: Callable[[random.Random], AbstractContextManager[Feed]] = module.start
    process, result = psutil.Process(), Result()
    signal.signal(signal.SIGPROF, _hang)
    while result.num_inputs < count and not stopped():
        first = result.num_inputs
        choose = random.Random(f"{kind} {seed} {first}")
        with start(choose) as feed:
            for number in range(first, min(first + INPUTS_PER_ROUND, count)):
                signal.setitimer(signal.ITIMER_PROF, _HANG_SECONDS)
                try:
                    result.num_past_decoder += feed()
                except Exception as error:
                    raise AssertionError(f"{kind}, seed {seed}, input {number}: {error}") from error
                result.num_inputs += 1
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.collect()
        result.memory.append(process.memory_info().rss)
    return result


def _hang(*_: object) -> None:
    raise TimeoutError(f"it took more than {_HANG_SECONDS:g} seconds")


def require_reason(refusal: Exception) -> None:
    """Fails for a refusal that does not name a reason."""
    assert str(refusal), f"{refusal!r} has no reason"
