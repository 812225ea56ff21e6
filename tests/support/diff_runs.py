"""Runs of the bundled engine that differ in one thing."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from engine_stub.config import EngineConfig
from engine_stub.core.scheduler import Scheduler
from engine_stub.core.waiting_queue import WaitingQueue
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.diff.run import RunDecisions
from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import SamplingParams, SequenceGroup
from seqtop.state import EngineState
from seqtop.wire import parsing
from tests.support.mutants import PREAMBLE, PayloadCollector

PROMPTS = (
    PREAMBLE + "Tell me more.",
    "Why? " * 40,
    PREAMBLE + "Begin!",
    "One day " * 4,
    "Ah",
    "Hello there, " * 12,
    "Once upon a time",
)
ARRIVALS = tuple(range(len(PROMPTS)))


def payloads(
    *,
    arrivals: Sequence[int] = ARRIVALS,
    patch: Callable[[Scheduler], None] | None = None,
    priorities: dict[int, int] | None = None,
    **settings: Any,
) -> list[bytes]:
    """The events of a run of the seven prompts.

    Args:
        arrivals: The prompts in order of arrival.
        patch: Changes the scheduler before the run.
        priorities: Priorities by prompt.
        settings: Settings in place of the usual ones.
    """
    clock = count()
    usual: dict[str, Any] = {
        "device": "cpu",
        "num_gpu_blocks": 20,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "max_model_len": 192,
    }
    engine = LLMEngine(EngineConfig(**usual | settings), clock=lambda: 1_000.0 + 0.01 * next(clock))
    if patch is not None:
        patch(engine.scheduler)
    collected = PayloadCollector()
    steps = StepPublisher(collected)
    info = engine_info(engine, engine_id="test", control=False)
    collected.publish(info)
    for number in arrivals:
        params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
        priority = (priorities or {}).get(number, 0)
        for group in engine.add_request(
            f"req-{number}", PROMPTS[number], params, priority=priority
        ):
            steps.arrived(group)
    while engine.has_unfinished_requests():
        steps.stepped(engine.step())
    return collected.payloads


def as_run(run: Sequence[bytes]) -> RunDecisions:
    """The run as a recording has it."""
    history, state = MemoryStore(), EngineState()
    for number, payload in enumerate(run):
        event = parsing.event(payload)
        state.apply(event)
        history.append(number, payload, event, state)
    return RunDecisions(history)


def prefer_victim(
    choose: Callable[[Sequence[SequenceGroup]], SequenceGroup],
) -> Callable[[Scheduler], None]:
    """A patch: `choose` picks the group to preempt among those behind the one in need.

    It replaces the method to which a new policy is added.
    """

    def patch(scheduler: Scheduler) -> None:
        def victim(for_group: SequenceGroup) -> SequenceGroup:
            behind = scheduler.running[scheduler.running.index(for_group) + 1 :]
            return choose(behind) if behind else for_group

        scheduler._victim = victim

    return patch


def rank_by(key: Callable[[SequenceGroup], int]) -> Callable[[Scheduler], None]:
    """A patch: the waiting queue is in the order of `key`."""

    def patch(scheduler: Scheduler) -> None:
        scheduler.waiting = WaitingQueue(lambda group: (key(group), 0))

    return patch
