"""The bundled engine without a model: made-up tokens, and steps that take a simulated time."""

from collections.abc import Callable, Mapping
from typing import Any

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.worker.recorded_worker import RecordedWorker
from seqtop.history.step_time import Size
from seqtop.whatif.replay import Clock
from seqtop.whatif.workload import Answer


def engine_without_model(
    clock: Clock,
    outputs: Mapping[str, list[int] | Answer],
    step_seconds: Callable[[Size], float],
    **settings: Any,
) -> LLMEngine:
    """Returns an engine whose steps advance a clock.

    Args:
        clock: The clock of the engine.
        outputs: The output tokens by request id, or all that the model answers.
        step_seconds: Returns the seconds that a step of a size takes.
        settings: Settings of the engine.
    """

    def ran(size: Size) -> float:
        seconds = step_seconds(size)
        clock.now += seconds
        return seconds

    answers = {
        name: own if isinstance(own, Answer) else Answer(own, [-1.0] * len(own))
        for name, own in outputs.items()
    }
    config = EngineConfig(device="cpu", **settings)
    worker = RecordedWorker(answers, ran, is_speculative=config.speculative is not None)
    return LLMEngine(config, clock=clock, timer=clock, worker=worker)
