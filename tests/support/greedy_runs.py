"""Recorded runs of the bundled engine that settings alone make different.

No model runs: tokens and times are made up, so that a run is the same each time, and quick.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.history import FileWriter
from seqtop.history.step_time import Size
from seqtop.sequence import SamplingParams
from seqtop.whatif.replay import Clock, RecordingSink
from seqtop.wire.messages import Event
from tests.support.simulated_model import engine_without_model

NUM_REQUESTS = 40
_GAP = 0.0005
"""The seconds between two steps."""
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
    path: Path,
    change: Callable[[Event], Event | None] = lambda event: event,
    *,
    num_requests: int = NUM_REQUESTS,
    **settings: Any,
) -> None:
    """Records a run whose requests arrive before fixed steps.

    Args:
        change: Changes each message before it is recorded, or drops it.
        num_requests: The requests that arrive.
        settings: Settings of the engine other than `SETTINGS`.
    """
    clock = Clock()
    clock.now = 1e9

    def step_seconds(size: Size) -> float:
        return 0.002 + 1e-5 * size.num_prefill_tokens + 1e-4 * size.num_decode_tokens

    def step() -> None:
        clock.now += _GAP
        steps.stepped(engine.step())

    lengths = [20 + number * 7 % 50 for number in range(num_requests)]
    outputs = {f"req-{number}": [1 + number] * length for number, length in enumerate(lengths)}
    engine = engine_without_model(
        clock, outputs, step_seconds, dtype="float32", **(SETTINGS | settings)
    )
    with FileWriter(path, overwrite=True) as writer:
        sink = ChangingSink(RecordingSink(writer), change)
        sink.publish(engine_info(engine, engine_id="real", control=False))
        steps = StepPublisher(sink)
        for number, length in enumerate(lengths):
            shared = [7] * 32 if number % 3 == 0 else []
            own = [1 + (number * 37 + index * 11) % 250 for index in range(5 + number * 13 % 80)]
            params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
            for group in engine.add_request(f"req-{number}", shared + own, params):
                steps.arrived(group)
            for _ in range(number * 5 % 4):
                if engine.has_unfinished_requests():
                    step()
        while engine.has_unfinished_requests():
            step()
