"""Recorded runs of the bundled engine that settings alone make different."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publishing import StepPublisher, engine_info
from seqtop.history import FileWriter
from seqtop.sequence import SamplingParams
from seqtop.whatif.replay import RecordingSink
from seqtop.wire.messages import Event

NUM_REQUESTS = 40
SETTINGS = {
    "block_size": 16,
    "num_gpu_blocks": 40,
    "max_num_seqs": 10,
    "max_num_batched_tokens": 96,
}


class ChangingSink:
    """Passes messages on, each changed by a function, which may drop it."""

    def __init__(self, sink: RecordingSink, change: Callable[[Event], Event | None]) -> None:
        self._sink = sink
        self._change = change

    def publish(self, event: Event) -> None:
        if (changed := self._change(event)) is not None:
            self._sink.publish(changed)


def record_run(
    path: Path, change: Callable[[Event], Event | None] = lambda event: event, **settings: Any
) -> None:
    """Records a greedy run whose requests arrive before fixed steps.

    Args:
        change: Changes each message before it is recorded, or drops it.
        settings: Settings of the engine other than `SETTINGS`.
    """
    engine = LLMEngine(EngineConfig(device="cpu", **(SETTINGS | settings)))
    with FileWriter(path, overwrite=True) as writer:
        sink = ChangingSink(RecordingSink(writer), change)
        sink.publish(engine_info(engine, engine_id="real", control=False))
        steps = StepPublisher(sink)
        for number in range(NUM_REQUESTS):
            shared = [7] * 32 if number % 3 == 0 else []
            own = [1 + (number * 37 + index * 11) % 250 for index in range(5 + number * 13 % 80)]
            params = SamplingParams(
                temperature=0.0, max_tokens=20 + number * 7 % 50, ignore_eos=True
            )
            for group in engine.add_request(f"req-{number}", shared + own, params):
                steps.arrived(group)
            for _ in range(number * 5 % 4):
                if engine.has_unfinished_requests():
                    steps.stepped(engine.step())
        while engine.has_unfinished_requests():
            steps.stepped(engine.step())
