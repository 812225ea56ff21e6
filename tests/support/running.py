"""Run an engine to the end of what it was given, its books checked at every step."""

import random
from collections.abc import Callable
from typing import Any

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher
from engine_stub.step_record import StepRecord
from seqtop.sequence import SamplingParams, SequenceGroup
from seqtop.transport.publisher import PendingCommand
from seqtop.whatif.replay import MessageSink
from seqtop.wire.messages import Event

MakeEngine = Callable[..., LLMEngine]
LOOKAHEADS: dict[str, dict[str, Any]] = {
    "multi-step": {"num_scheduler_steps": 5},
    "ngram": {"speculative": "ngram", "num_speculative_tokens": 3},
    "draft-head": {"speculative": "draft-head", "num_speculative_tokens": 3},
}
"""The settings of each way to compute several tokens of a sequence in a step."""


class Sink:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        self.events.append(event)


class DirectPublisher(StepPublisher):
    """Publishes an engine in this process, to a sink, and has no viewers."""

    def __init__(self, sink: MessageSink | None = None) -> None:
        super().__init__(sink or Sink())

    def commands(self, timeout: float = 0.0) -> list[PendingCommand]:
        return []

    def repair(self, engine: LLMEngine) -> None:
        """Does nothing: nothing is lost."""


def repeating_prompts() -> list[list[int]]:
    """Of 6 to 51 tokens; half begin alike, and all repeat themselves, for drafts to be found."""
    rng = random.Random(3)
    shared = [rng.randrange(1, 257) for _ in range(6)] * 3
    own = [[rng.randrange(1, 257) for _ in range(length)] for length in (3, 30, 14, 8, 25, 9)]
    return [(shared if index % 2 else []) + prompt + prompt[:3] for index, prompt in enumerate(own)]


def drain(engine: LLMEngine) -> list[StepRecord]:
    records = []
    while engine.has_unfinished_requests():
        records.append(engine.step())
        engine.block_manager.check()
    return records


def run(
    engine: LLMEngine, prompts: list[list[int]], *params: Any
) -> tuple[list[SequenceGroup], list[StepRecord]]:
    groups: list[SequenceGroup] = []
    for index, prompt in enumerate(prompts):
        groups += engine.add_request(f"r{index}", prompt, params[index % len(params)])
    return groups, drain(engine)


def tokens(groups: list[SequenceGroup]) -> list[tuple[int, ...]]:
    return [seq.get_output_token_ids() for group in groups for seq in group.seqs]


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


class Clock:
    """A clock that advances by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now
