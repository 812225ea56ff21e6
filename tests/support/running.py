"""Run an engine to the end of what it was given, its books checked at every step."""

from collections.abc import Callable
from typing import Any

from engine_stub.engine import LLMEngine
from engine_stub.step_record import StepRecord
from seqtop.sequence import SamplingParams, SequenceGroup

MakeEngine = Callable[..., LLMEngine]


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
