"""The command ``python -m engine_stub.train.prompts``, which draws the requests of the demo."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import msgspec

from engine_stub.entrypoints.workload import PROMPTS, DemoRequest
from engine_stub.train.stories import draw_document

NUM_REQUESTS = 600

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


def draw_requests(rng: Random) -> Iterator[DemoRequest]:
    """Yields requests without end, in the order of their ticks."""
    yield _sampled(rng, 0, "typed", 1, "Once upon a time", 120)
    for number in range(1, 4):
        yield _sampled(rng, 5 * number, "shared", number, _shared_prompt(rng), 140)
    yield _sampled(rng, 25, "long", 1, _long_prompt(rng), 60)
    for number in range(2, 9):
        yield _sampled(rng, 30 + number, "typed", number, rng.choice(_TYPED), 160)
    yield DemoRequest(40, "beams", 1, "Once upon a time", max_tokens=60, beam_width=3)
    yield from _mixture(rng, first_tick=150, first_number=9)


def _mixture(rng: Random, first_tick: int, first_number: int) -> Iterator[DemoRequest]:
    number, tick = first_number, first_tick
    while True:
        # Bursts with pauses between them, so that the queue fills and drains.
        for _ in range(rng.randint(3, 9)):
            kind = rng.choices(("typed", "shared", "long"), weights=(5, 4, 1))[0]
            if number % 12 == 0:
                width = rng.randint(3, 4)
                prompt = rng.choice(_TYPED)
                yield DemoRequest(tick, "beams", number, prompt, max_tokens=60, beam_width=width)
            prompts = {"typed": rng.choice(_TYPED), "shared": _shared_prompt(rng)}
            prompt = prompts.get(kind) or _long_prompt(rng)
            yield _sampled(rng, tick, kind, number, prompt, rng.randint(40, 200))
            number += 1
            tick += rng.randint(1, 8)
        tick += rng.randint(60, 160)


def _sampled(
    rng: Random, tick: int, kind: str, number: int, prompt: str, max_tokens: int
) -> DemoRequest:
    return DemoRequest(tick, kind, number, prompt, max_tokens, seed=rng.randrange(2**31))


def _shared_prompt(rng: Random) -> str:
    return f"{_PREAMBLE}\n\nUser: Tell me a story about {rng.choice(_TOPICS)}.\nBot:"


def _long_prompt(rng: Random, *, num_characters: int = 1_600) -> str:
    chapters = ""
    while len(chapters) < num_characters:
        chapters += draw_document(rng).story + "\n\n"
    return chapters[:num_characters].rsplit(" ", 1)[0]


def write_requests(path: Path) -> None:
    """Writes the requests of the demo, one per line."""
    requests = islice(draw_requests(Random(0)), NUM_REQUESTS)
    path.write_bytes(msgspec.json.Encoder().encode_lines(requests))


def main() -> None:
    """Writes the file that the demo reads, or another one."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_stub.train.prompts", description="Draw the requests of the demo."
    )
    parser.add_argument("--out", type=Path, default=PROMPTS, help="file to write (%(default)s)")
    write_requests(parser.parse_args().out)


if __name__ == "__main__":
    main()
