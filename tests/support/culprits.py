"""Recorded runs of the bundled engine in which one thing delays a victim, on a simulated clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.history import FileWriter
from seqtop.history.step_time import Size
from seqtop.sequence import SamplingParams
from seqtop.whatif.replay import Clock, RecordingSink
from tests.support.simulated_model import engine_without_model

Kind: TypeAlias = Literal["long_prompt", "burst", "priority", "leak", "pause"]
VICTIM = "victim"
CULPRIT = "culprit"
"""The prefix of the ids of the requests that delay the victim."""

_NOISE = 0.05
"""The standard deviation of a step's time, relative to the time."""


class Arrival(NamedTuple):
    """A request, and when it arrives."""

    time: float
    request_id: str
    num_prompt: int
    num_output: int
    priority: int = 0


class CulpritRun:
    """A run with a culprit of a kind, in which all amounts are random.

    Args:
        kind: What delays the victim. `leak` takes blocks that no table names, `pause` stops the
            engine between two steps.
        seed: The seed of all amounts.
    """

    def __init__(self, kind: Kind, seed: int) -> None:
        self._rng = rng = random.Random(f"{kind} {seed}")
        self._kind = kind
        self.arrivals: list[Arrival] = [
            Arrival(rng.uniform(0, 2), f"other-{n}", rng.randint(8, 40), rng.randint(20, 60))
            for n in range(24)
        ]
        self.settings = {"num_gpu_blocks": 400, "max_num_seqs": 16, "max_num_batched_tokens": 128}
        # Steps from which the costs of tokens are known when the culprit comes.
        self.arrivals += [Arrival(n / 4 - 2, f"early-{n}", 8 + 9 * n, 20) for n in range(4)]
        victim = Arrival(0.5, VICTIM, rng.randint(16, 32), rng.randint(60, 90))
        match kind:
            case "long_prompt":
                self.arrivals.append(Arrival(0.55, CULPRIT, rng.randint(700, 900), 2))
            case "burst":
                self.settings["max_num_seqs"] = 12
                self.arrivals += [
                    Arrival(0.45, f"{CULPRIT}-{n}", 24, rng.randint(60, 100)) for n in range(40)
                ]
            case "priority":
                self.settings["max_num_seqs"] = 6
                self.arrivals += [
                    Arrival(0.3 + 0.05 * n, f"{CULPRIT}-{n}", 24, rng.randint(40, 60), -1)
                    for n in range(40)
                ]
            case "leak":
                victim = victim._replace(time=1.5)
            case "pause":
                pass
        self.arrivals.append(victim)
        self.arrivals.sort()

    def record(self, path: Path) -> None:
        """Writes the recording of the run."""
        rng, clock = self._rng, Clock()
        clock.now = 998.0

        def step_seconds(size: Size) -> float:
            seconds = 0.01 + 0.002 * size.num_prefill_tokens + 0.0005 * size.num_decode_tokens
            return seconds * max(rng.gauss(1.0, _NOISE), 0.1)

        outputs = {arrival.request_id: [7] * arrival.num_output for arrival in self.arrivals}
        engine = engine_without_model(
            clock, outputs, step_seconds, max_model_len=None, **self.settings
        )
        with FileWriter(path, overwrite=True) as writer:
            sink = RecordingSink(writer)
            sink.publish(engine_info(engine, engine_id="culprit", control=False))
            self._run(engine, clock, StepPublisher(sink), self._fault(engine, clock))

    def _fault(self, engine: LLMEngine, clock: Clock) -> Callable[[], None]:
        """Returns what is done before each step."""
        has_happened, num_to_lose = False, self.settings["num_gpu_blocks"] - 10

        def inject() -> None:
            nonlocal has_happened, num_to_lose
            if has_happened or clock.now < 1_000.45:
                return
            if self._kind == "leak":
                pool = engine.block_manager.device
                num_lost = min(pool.num_available, num_to_lose)
                pool.get_new_blocks(num_lost, -1)
                num_to_lose -= num_lost
                if num_to_lose:
                    return
            elif self._kind == "pause" and clock.now >= 1_000.7:
                clock.now += self._rng.uniform(3.0, 6.0)
            else:
                return
            has_happened = True

        return inject

    def _run(
        self, engine: LLMEngine, clock: Clock, steps: StepPublisher, inject: Callable[[], None]
    ) -> None:
        waiting, number = [*self.arrivals], 0
        while waiting or engine.has_unfinished_requests():
            if not engine.has_unfinished_requests():
                clock.now = max(clock.now, 1_000.0 + waiting[0].time)
            while waiting and 1_000.0 + waiting[0].time <= clock.now:
                arrival, number = waiting.pop(0), number + 1
                for group in engine.add_request(
                    arrival.request_id,
                    [1 + (index * 7 + number) % 250 for index in range(arrival.num_prompt)],
                    SamplingParams(temperature=0, max_tokens=arrival.num_output, ignore_eos=True),
                    1_000.0 + arrival.time,
                    priority=arrival.priority,
                ):
                    steps.arrived(group)
            inject()
            steps.stepped(engine.step())
            clock.now += 0.0005
