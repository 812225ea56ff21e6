"""Random runs of the bundled engine's scheduler, checked: no model, and a simulated clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, get_args

from engine_stub.config import PreemptionVictim
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.history.step_time import Size
from seqtop.sequence import SamplingParams
from seqtop.whatif.replay import Clock
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, PreemptionMode
from tests.support.simulated_model import engine_without_model

MAX_MODEL_LEN = 160
START = 1_000.0


class ScheduledRun:
    """A run with random limits, which hurt, and random requests, priorities and aborts.

    Args:
        seed: The seed of all of it.
        inject: Patches the run, if it shall have a bug.
        num_requests: The requests that arrive.
        max_steps: The steps after which the run ends in any case.
        settings: Settings of the engine in place of random ones.
    """

    def __init__(
        self,
        seed: int,
        inject: Callable[[ScheduledRun], object] = lambda run: None,
        *,
        num_requests: int = 24,
        max_steps: int = 600,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        **settings: Any,
    ) -> None:
        self._rng = random.Random(seed)
        self.clock = Clock()
        self.clock.now = START
        self._requests = self._requests_of(num_requests)
        self.engine = engine_without_model(
            self.clock,
            {name: [7] * params.max_tokens for name, _, params, _ in self._requests},
            self._step_seconds,
            max_model_len=MAX_MODEL_LEN,
            **(self._settings() | settings),
        )
        self.scheduler, self.manager = self.engine.scheduler, self.engine.block_manager
        self.num_steps = 0
        self.onset: float | None = None
        """The time at which a bug first took effect, epoch seconds."""
        self.findings: list[tuple[float, Finding]] = []
        """All findings, with the engine's time."""
        self._checker = Checker(thresholds=thresholds)
        self._max_steps = max_steps
        inject(self)

    def begin(self) -> None:
        """Notes that the bug has taken effect."""
        if self.onset is None:
            self.onset = self.clock.now

    def publish(self, event: Event) -> None:
        found = self._checker.apply(parsing.event(codec.encode(event)))
        self.findings += [(self.clock.now, finding) for finding in found]

    def go(self) -> ScheduledRun:
        """Runs until all requests have ended, or for as many steps as there may be."""
        rng, steps, waiting = self._rng, StepPublisher(self), [*self._requests]
        self.publish(engine_info(self.engine, engine_id="scheduled", control=False))
        while (waiting or self.engine.has_unfinished_requests()) and (
            self.num_steps < self._max_steps
        ):
            for _ in range(rng.choice((0, 0, 0, 1, 2))):
                if waiting:
                    name, prompt, params, priority = waiting.pop(0)
                    for group in self.engine.add_request(
                        name, prompt, params, self.clock.now, priority=priority
                    ):
                        steps.arrived(group)
            if self.engine.has_unfinished_requests():
                steps.stepped(self.engine.step())
                self.num_steps += 1
                if rng.random() < 0.02:
                    self.engine.abort_request(f"req-{rng.randrange(len(self._requests))}")
            self.clock.now += rng.expovariate(1000.0)
        return self

    def _step_seconds(self, size: Size) -> float:
        """Returns the time of a step of vLLM on a GPU: 10 to 50 ms."""
        mean = 0.01 + 0.0005 * size.num_prefill_tokens + 0.001 * size.num_decode_tokens
        return mean * self._rng.uniform(0.8, 1.2)

    def _requests_of(self, number: int) -> list[tuple[str, list[int], Any, int]]:
        rng = self._rng
        shared = [rng.randrange(1, 257) for _ in range(48)]
        has_priorities = rng.random() < 0.3
        return [
            (
                f"req-{index}",
                shared[: rng.choice((0, 0, 16, 48))]
                + [rng.randrange(1, 257) for _ in range(rng.randint(2, 60))],
                SamplingParams(
                    temperature=0, ignore_eos=True, max_tokens=rng.choice((2, 8, 20, 40))
                ),
                rng.randrange(2) if has_priorities else 0,
            )
            for index in range(number)
        ]

    def _settings(self) -> dict[str, Any]:
        rng = self._rng
        max_num_seqs, block_size = rng.randint(2, 12), rng.choice((4, 8, 16))
        chunked = rng.random() < 0.7
        budget = rng.randint(max_num_seqs, 96)
        least = -(-MAX_MODEL_LEN // block_size)
        return {
            "block_size": block_size,
            "num_gpu_blocks": rng.randint(least, 4 * least),
            "num_cpu_blocks": rng.choice((0, 0, 20, 80)),
            "preemption_mode": rng.choice(get_args(PreemptionMode)),
            "preemption_victim": rng.choice(get_args(PreemptionVictim)),
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": budget if chunked else max(budget, MAX_MODEL_LEN),
            "enable_chunked_prefill": chunked,
            "enable_prefix_caching": rng.random() < 0.7,
            "num_scheduler_steps": rng.choice((1, 1, 1, 4)),
        }
