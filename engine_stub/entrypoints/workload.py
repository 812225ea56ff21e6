"""The endless workload of the demo.

The first ten seconds show queueing, shared prefixes, a long prompt in chunks, preemptions and a
beam search; a random mixture of these follows.

All random numbers come from a seed, and time is counted in ticks (an engine step, or a pause of the
same length if there is nothing to do), so that the demo is deterministic on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.train.stories import draw_document
from seqtop.sequence import SamplingParams

DEMO_LIMITS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "num_gpu_blocks": 64,
    "max_model_len": 768,
}
"""`EngineConfig` settings with which a dozen small requests compete for blocks."""

_PREAMBLE = (
    "You are a storyteller. You tell short, gentle stories about animals and people who live in"
    " small towns, by rivers and in old woods. Every story has a beginning, a worry and a good"
    " end. You never hurry, and you like weather, bread and lanterns."
)
_TOPICS = (
    "a lost kite",
    "the baker's cat",
    "a bridge over the river",
    "two friends who quarrel",
    "a lantern that would not light",
    "the first snow",
    "a boat made of paper",
    "a shy fox",
)
_TYPED = (
    "Hello! What should I cook tonight?",
    "def fibonacci(n):",
    "Shopping list: eggs, flour, candles",
    "Why is the sky blue?",
    "Once upon a time",
    "Dear diary, today",
    "Il était une fois",
    "The old clock in the hall",
)


@dataclass(frozen=True)
class Arrival:
    """A request, with the tick of its arrival counted from the demo's start."""

    tick: int
    request_id: str
    prompt: str
    params: SamplingParams | BeamSearchParams


def arrivals(seed: int = 0) -> Iterator[Arrival]:
    """Yields the endless workload, in the order of its ticks."""
    rng = Random(seed)
    yield Arrival(0, "typed-1", "Once upon a time", _params(rng, 120))
    for number in range(1, 4):
        yield Arrival(5 * number, f"shared-{number}", _shared_prompt(rng), _params(rng, 140))
    yield Arrival(25, "long-1", _long_prompt(rng), _params(rng, 60))
    for number in range(2, 9):
        yield Arrival(30 + number, f"typed-{number}", rng.choice(_TYPED), _params(rng, 160))
    yield Arrival(40, "beams-1", "Once upon a time", BeamSearchParams(beam_width=3, max_tokens=60))
    yield from _mixture(rng, first_tick=150, first_number=9)


def _mixture(rng: Random, first_tick: int, first_number: int) -> Iterator[Arrival]:
    number, tick = first_number, first_tick
    while True:
        # Bursts with pauses between them, so that the queue fills and drains.
        for _ in range(rng.randint(3, 9)):
            kind = rng.choices(("typed", "shared", "long"), weights=(5, 4, 1))[0]
            if number % 12 == 0:
                search = BeamSearchParams(beam_width=rng.randint(3, 4), max_tokens=60)
                yield Arrival(tick, f"beams-{number}", rng.choice(_TYPED), search)
            prompt = {"typed": rng.choice(_TYPED), "shared": _shared_prompt(rng)}.get(kind)
            yield Arrival(
                tick,
                f"{kind}-{number}",
                prompt or _long_prompt(rng),
                _params(rng, rng.randint(40, 200)),
            )
            number += 1
            tick += rng.randint(1, 8)
        tick += rng.randint(60, 160)


def _shared_prompt(rng: Random) -> str:
    return f"{_PREAMBLE}\n\nUser: Tell me a story about {rng.choice(_TOPICS)}.\nBot:"


def _long_prompt(rng: Random, *, num_characters: int = 1_600) -> str:
    chapters = ""
    while len(chapters) < num_characters:
        chapters += draw_document(rng).story + "\n\n"
    return chapters[:num_characters].rsplit(" ", 1)[0]


def _params(rng: Random, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens, temperature=0.8, top_p=0.95, seed=rng.randrange(2**31), logprobs=3
    )
