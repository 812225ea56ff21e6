"""Records runs of transformers: `record_transformers.py` in the environment of its tests."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from stepping import VOCABULARY, SteppedEngine, allow_without_gpu, make_manager, make_model, stepped

from seqtop.history import FileWriter

SHARED = list(range(1, 81))
NUM_REQUESTS = 40


def drive(engine: SteppedEngine) -> None:
    """Gives an engine requests with shared prefixes, and cancels some of them."""
    choice = random.Random(7)
    for number in range(NUM_REQUESTS):
        shared = SHARED[: 16 * choice.randrange(6)]
        own = [choice.randrange(VOCABULARY) for _ in range(choice.randrange(3, 60))]
        engine.add(f"request-{number}", shared + own, choice.randrange(2, 24))
        for _ in range(choice.choice((1, 3, 6))):
            engine.step()
        if number % 8 == 5:
            engine.cancel(f"request-{number}")
    engine.run()


def main() -> None:
    # Samples share blocks, so preempting one may free none; that is found, and is true.
    for name, options in (
        ("transformers", {"use_async_batching": True, "num_blocks": 16}),
        ("transformers-samples", {"samples": 2, "num_blocks": 48}),
    ):
        with pytest.MonkeyPatch.context() as patch:
            allow_without_gpu(patch)
            path = Path(__file__).with_name(f"{name}.seqtop")
            manager = make_manager(make_model(), scheduler_type="fifo", **options)
            with FileWriter(path, overwrite=True) as writer, stepped(manager) as engine:
                engine.session.add_listener(writer.record)
                drive(engine)
        print(f"{name}: {engine.num_compared} steps, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
