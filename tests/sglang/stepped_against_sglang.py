"""What a viewer shows of SGLang's real scheduler, at each step, over the kinds of work it has.

Run by `make test-sglang`. A process can have one scheduler, of the kind that the environment
says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from stepping import abort, generate, make_scheduler, stepped


def work(scheduler: Any, num_rounds: int = 1) -> Iterator[list[Any]]:
    """What a scheduler receives, turn by turn."""
    for number in range(num_rounds):
        shared = [100 + number + i for i in range(40)]

        def new(name: str, ids: list[int], length: int, number: int = number) -> Any:
            return generate(scheduler, f"{name}-{number}", ids, length)

        yield [new("first", shared + [300] * 8, 10)]
        for _ in range(14):
            yield []
        for i in range(4):
            # One by one: of two at once, the admission sees that they do not fit.
            yield [new(f"r{i}", shared + [400 + i] * 10, 90 + 5 * i)]
            yield []
            yield []
        yield [new("running", shared + [500] * 5, 200), new("twin", shared + [500] * 5, 30)]
        yield []
        yield [new("long", [600 + i for i in range(100)], 5)]
        for _ in range(8):
            yield []
        yield [new("queued", [700 + i for i in range(150)], 50)]
        yield []
        yield [abort(f"running-{number}"), abort(f"queued-{number}")]
        for _ in range(400):
            yield []


def test_work() -> None:
    page_size, overlap = int(os.environ.get("PAGE", "1")), os.environ.get("OVERLAP") != "0"
    scheduler = make_scheduler(page_size=page_size, disable_overlap_schedule=not overlap)
    assert scheduler.enable_overlap is overlap
    with stepped(scheduler) as engine:
        engine.run(work(scheduler))
    assert engine.spy.kinds == {"chunk", "prefix hit", "prefix miss", "retracted"}
    core = type(scheduler.tree_cache.tree_core).__name__
    print(
        f"\npages of {page_size}, overlap {overlap}, {core}:"
        f" {engine.num_compared} steps, {len(engine.spy.reqs)} requests,"
        f" {len(engine.differences)} differences, {len(engine.watch.findings)} findings,"
        f" reasons to wait {engine.reasons}"
    )
