"""The endless workload of the demo.

The first ten seconds show queueing, shared prefixes, a long prompt in chunks, preemptions and a
beam search; bursts of all of these follow, with pauses between them.

The requests are in a file, which `engine_stub.train.prompts` draws from the story grammar. Time is
counted in ticks (an engine step, or a pause of the same length if there is nothing to do), so that
the demo is deterministic on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from engine_stub.config import DEFAULT_MODEL
from engine_stub.core.beam_search import BeamSearchParams
from seqtop.sequence import SamplingParams

DEMO_LIMITS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "num_gpu_blocks": 64,
    "max_model_len": 768,
}
"""`EngineConfig` settings with which a dozen small requests compete for blocks."""

PROMPTS = DEFAULT_MODEL / "prompts.jsonl"
"""The requests of the demo, a `DemoRequest` per line, in the order of their ticks."""

_PAUSE = 150
"""Ticks between the last request and the first, which comes again."""


class DemoRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of the demo.

    Attributes:
        tick: The tick of its arrival, counted from the demo's start.
        kind: "typed", "shared", "long" or "beams".
        number: A number that no other request of this kind has.
        seed: The seed of sampling; None for a beam search.
        beam_width: The width of a beam search; None for sampling.
    """

    tick: int
    kind: str
    number: int
    prompt: str
    max_tokens: int
    seed: int | None = None
    beam_width: int | None = None


@dataclass(frozen=True)
class Arrival:
    """A request, with the tick of its arrival counted from the demo's start."""

    tick: int
    request_id: str
    prompt: str
    params: SamplingParams | BeamSearchParams


def arrivals(path: Path = PROMPTS) -> Iterator[Arrival]:
    """Yields the requests of a file for ever, in the order of their ticks.

    When they come again, they have other names and other seeds.
    """
    requests = msgspec.json.Decoder(DemoRequest).decode_lines(path.read_bytes())
    num_ticks = requests[-1].tick + _PAUSE
    num_names = max(request.number for request in requests)
    for turn in count():
        for request in requests:
            yield Arrival(
                turn * num_ticks + request.tick,
                f"{request.kind}-{turn * num_names + request.number}",
                request.prompt,
                _params(request, turn),
            )


def _params(request: DemoRequest, turn: int) -> SamplingParams | BeamSearchParams:
    if request.beam_width is not None:
        return BeamSearchParams(beam_width=request.beam_width, max_tokens=request.max_tokens)
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=0.8,
        top_p=0.95,
        seed=None if request.seed is None else request.seed + turn,
        logprobs=3,
    )
