"""The demo's requests: within ten seconds one sees queueing, shared prefixes, a long prompt cut
into chunks and preemptions, and from then on a mixture of them for as long as anybody watches.

Everything is drawn from a seed, so two demos show the same requests at the same times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from engine_stub.train.stories import draw_document
from seqtop.sequence import SamplingParams

DEMO_LIMITS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "num_gpu_blocks": 88,
    "max_model_len": 768,
}
"""`EngineConfig` settings under which a dozen small requests already compete for blocks."""

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
    """A request that arrives `time` seconds after the demo's start."""

    time: float
    request_id: str
    prompt: str
    params: SamplingParams


def arrivals(seed: int = 0) -> Iterator[Arrival]:
    """The endless workload, in order of time."""
    rng = Random(seed)
    yield Arrival(0.0, "typed-1", "Once upon a time", _params(rng, 120))
    for number in range(1, 4):
        yield Arrival(0.3 * number, f"shared-{number}", _shared_prompt(rng), _params(rng, 160))
    yield Arrival(1.6, "long-1", _long_prompt(rng), _params(rng, 80))
    for number in range(2, 9):
        yield Arrival(2.0 + 0.1 * number, f"typed-{number}", rng.choice(_TYPED), _params(rng, 220))
    yield from _mixture(rng, time=6.0)


def _mixture(rng: Random, time: float) -> Iterator[Arrival]:
    number = 8
    while True:
        # Bursts with pauses between them: the queue fills, and drains again.
        for _ in range(rng.randint(2, 7)):
            number += 1
            time += rng.uniform(0.05, 0.6)
            kind = rng.choices(("typed", "shared", "long"), weights=(5, 4, 1))[0]
            prompt = {
                "typed": rng.choice(_TYPED),
                "shared": _shared_prompt(rng),
                "long": _long_prompt(rng),
            }[kind]
            yield Arrival(time, f"{kind}-{number}", prompt, _params(rng, rng.randint(60, 240)))
        time += rng.uniform(2.0, 5.0)


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
