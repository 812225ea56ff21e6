"""The bundled engine with many sequences in decode, published by a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import torch

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publisher_link import PublisherLink
from engine_stub.entrypoints.reporting import engine_info
from engine_stub.entrypoints.reports import Start
from seqtop.sequence import SamplingParams

SHARED_TOKENS = 256
"""The shared part of each prompt: sequences are long, and most of them is in the prefix cache."""
OWN_TOKENS = 16
NUM_OUTPUTS = 1_000


@dataclass
class Published:
    """An engine whose requests are all in decode, and the link to its publisher."""

    engine: LLMEngine
    link: PublisherLink
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
        with closing(PublisherLink()) as link:
            link.start(Start(info, endpoint, insecure=False, keys=None))
            _add(engine, link, 0)
            link.stepped(engine.step())  # the first one alone, to cache its prefix
            for number in range(1, size):
                _add(engine, link, number)
            while engine.scheduler.waiting or not _all_decode(engine):
                link.stepped(engine.step())
            yield Published(engine, link, endpoint)
    engine.close()


def _add(engine: LLMEngine, link: PublisherLink, number: int) -> None:
    shared = [10 + index % 700 for index in range(SHARED_TOKENS)]
    own = [2 + (number * 31 + index * 7) % 1_000 for index in range(OWN_TOKENS)]
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)
    for group in engine.add_request(f"request-{number}", shared + own, params):
        link.arrived(group)


def _all_decode(engine: LLMEngine) -> bool:
    return all(group.first_seq.get_output_len() for group in engine.scheduler.running)
