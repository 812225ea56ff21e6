"""The bundled engine with many sequences in decode, and the publisher of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import torch

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher

SHARED_TOKENS = 256
"""The shared part of each prompt: sequences are long, and most of them is in the prefix cache."""
OWN_TOKENS = 16
NUM_OUTPUTS = 1_000


@dataclass
class Published:
    """An engine whose requests are all in decode, and the publisher of its steps."""

    engine: LLMEngine
    publisher: MessagePublisher
    steps: StepPublisher
    endpoint: str


@contextmanager
def published(size: int) -> Iterator[Published]:
    """Returns a publishing engine with the bundled model and `size` sequences in decode."""
    torch.set_num_threads(1)
    engine = LLMEngine(
        EngineConfig(
            device="cpu",
            dtype="float32",
            max_num_seqs=size,
            max_num_batched_tokens=max(2 * size, 512),
            max_model_len=512,
            num_gpu_blocks=size * 20 + 64,
        )
    )
    info = engine_info(engine, engine_id="benchmark", control=False)
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        with MessagePublisher(endpoint, info, EngineState()) as publisher:
            steps = StepPublisher(publisher)
            _add(engine, steps, 0)
            steps.stepped(engine.step())  # the first one alone, to cache its prefix
            for number in range(1, size):
                _add(engine, steps, number)
            while engine.scheduler.waiting or not _all_decode(engine):
                steps.stepped(engine.step())
            yield Published(engine, publisher, steps, endpoint)
    engine.close()


def _add(engine: LLMEngine, steps: StepPublisher, number: int) -> None:
    shared = [10 + index % 700 for index in range(SHARED_TOKENS)]
    own = [2 + (number * 31 + index * 7) % 1_000 for index in range(OWN_TOKENS)]
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)
    for group in engine.add_request(f"request-{number}", shared + own, params):
        steps.arrived(group)


def _all_decode(engine: LLMEngine) -> bool:
    return all(group.first_seq.get_output_len() for group in engine.scheduler.running)
