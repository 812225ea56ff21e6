"""A viewer of transformers' continuous batching is right at every step.

Run by `make test-transformers`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import transformers
from stepping import (
    VOCABULARY,
    SteppedEngine,
    allow_without_gpu,
    make_manager,
    make_model,
    stepped,
)
from transformers.generation.continuous_batching import input_outputs

from seqtop.adapters.publisher_process import ObservationSender

BATCHES_ASYNCHRONOUSLY = hasattr(
    input_outputs.ContinuousBatchingAsyncIOs, "_supported_device_types"
)
SHARED = list(range(1, 81))


def prompts(engine: SteppedEngine, *, num: int = 12, max_tokens: int = 24) -> None:
    """Requests with shared prefixes and of many lengths, that arrive while others run."""
    choice = random.Random(7)
    for number in range(num):
        shared = SHARED[: 16 * choice.randrange(6)]
        own = [choice.randrange(VOCABULARY) for _ in range(choice.randrange(3, 60))]
        engine.add(f"request-{number}", shared + own, choice.randrange(2, max_tokens))
        if number % 3:
            engine.step()
    engine.run()


def equal_prompts(engine: SteppedEngine) -> None:
    """Equal prompts that are computed at the same time, whose blocks are then replaced."""
    for number in range(6):
        engine.add(f"request-{number}", SHARED[:40])
    engine.run()
    assert engine.spy.num_replaced


def cancellations(engine: SteppedEngine) -> None:
    """Requests are cancelled while they run, while they wait, after their end, and all of them."""
    for number in range(12):
        engine.add(f"request-{number}", SHARED[: 10 + 5 * number], 20)
    for cancelled in (0, 3, 11, 3):
        engine.step()
        engine.cancel(f"request-{cancelled}")
    engine.run()
    engine.cancel("request-5")
    for number in range(3):
        engine.add(f"again-{number}", SHARED[:30])
    engine.step()
    for number in range(3):
        engine.cancel(f"again-{number}")
    engine.step()
    engine.add("request-0", SHARED[:8], shown="request-0-2")  # an id that was used before
    engine.run()


def twice(engine: SteppedEngine) -> None:
    """An id that comes again while its first request waits, which transformers then forgets."""
    for number in range(8):
        engine.add(f"request-{number}", SHARED[: 10 + 5 * number], 20)
    engine.step()
    engine.add("d", SHARED[:30])
    engine.step()
    assert "d" in engine.scheduler.waiting_requests
    engine.add("d", SHARED[:20], shown="d-2")
    engine.run()
    assert engine.session.state.requests["d"].finish_reason == "abort"


WORKLOADS: dict[str, tuple[dict[str, Any], Callable[[SteppedEngine], None], set[str]]] = {
    "a large pool": ({}, prompts, set()),
    "a small pool": ({"num_blocks": 11}, prompts, {"preempted", "no_blocks"}),
    "equal prompts": ({}, equal_prompts, set()),
    "cancellations": ({}, cancellations, set()),
    "cancellations in a small pool": ({"num_blocks": 14}, cancellations, set()),
    "an id twice": ({"max_requests_per_batch": 3}, twice, set()),
    "no sharing": ({"num_blocks": 14, "allow_block_sharing": False}, prompts, {"preempted"}),
    "three per batch": ({"max_requests_per_batch": 3}, prompts, {"seq_limit"}),
    "a token budget of 20": ({"max_batch_tokens": 20}, prompts, {"token_budget"}),
    "samples": ({"samples": 3}, prompts, {"samples"}),
    "samples in a small pool": ({"samples": 3, "num_blocks": 14}, prompts, {"samples"}),
    "an end by a token": ({"eos": 7}, prompts, set()),
    "sliding windows": ({"kinds": "ss"}, prompts, set()),
    "offloading": ({"num_blocks": 11, "cpu_offload_space": 1.0}, prompts, {"swapped"}),
    "offloading to little memory": (
        {"num_blocks": 11, "cpu_offload_space": 8 * 8192 / 2**30},
        prompts,
        {"swapped", "preempted"},
    ),
    "offloading, cancellations": (
        {"num_blocks": 11, "cpu_offload_space": 1.0},
        cancellations,
        {"swapped"},
    ),
    "offloading of two kinds": (
        {"kinds": "sf", "num_blocks": 9, "cpu_offload_space": 1.0},
        prompts,
        {"swapped"},
    ),
    "asynchronous": ({"use_async_batching": True}, prompts, set()),
    "asynchronous, a small pool": (
        {"use_async_batching": True, "num_blocks": 11},
        prompts,
        {"preempted"},
    ),
    "asynchronous, cancellations": (
        {"use_async_batching": True, "num_blocks": 14},
        cancellations,
        set(),
    ),
    "asynchronous, samples": ({"use_async_batching": True, "samples": 3}, prompts, {"samples"}),
    "asynchronous, offloading": (
        {"use_async_batching": True, "num_blocks": 11, "cpu_offload_space": 1.0},
        prompts,
        {"swapped"},
    ),
    "two kinds": ({"kinds": "sf"}, prompts, set()),
    "two kinds, of which one has more layers": ({"kinds": "ssf", "num_blocks": 12}, prompts, set()),
    "two kinds of no common measure": ({"kinds": "ffsss", "num_blocks": 12}, prompts, set()),
}


@pytest.mark.parametrize("scheduler", ["fifo", "prefill_first"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_viewer_shows_the_processors_state(
    name: str, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, workload, expected = WORKLOADS[name]
    options = dict(options)
    model = make_model(kinds=options.pop("kinds", "ff"))
    manager = make_manager(model, scheduler_type=scheduler, **options)
    if options.keys() & {"use_async_batching", "cpu_offload_space"}:
        if "use_async_batching" in options and not BATCHES_ASYNCHRONOUSLY:
            pytest.skip("this version creates streams of CUDA")
        allow_without_gpu(monkeypatch)
    with stepped(manager) as engine:
        workload(engine)
    spy, seen = engine.spy, set(engine.reasons)
    num_preemptions = sum(spy.preemptions.values())
    seen |= {"preempted"} if num_preemptions else set()
    seen |= {"samples"} if spy.parents else set()
    seen |= {"swapped"} if spy.num_swaps else set()
    print(
        f"transformers {transformers.__version__}, {scheduler}, {name}: {engine.num_compared}"
        f" steps, {num_preemptions} preemptions ({spy.num_swaps} to host memory),"
        f" {len(spy.parents)} samples,"
        f" {sum(spy.cached.values())} tokens cached, {spy.num_replaced} blocks replaced,"
        f" {engine.num_starved} starved, reasons {dict(engine.reasons)}"
    )
    if scheduler == "fifo":
        assert expected <= seen


@pytest.mark.parametrize("name", ["a small pool", "samples in a small pool", "offloading"])
def test_viewer_has_the_processors_state_again_after_a_gap(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, workload, _ = WORKLOADS[name]
    allow_without_gpu(monkeypatch)
    calls = itertools.count()
    monkeypatch.setattr(
        ObservationSender, "wants_all_requests", property(lambda _: next(calls) % 7 == 6)
    )
    with stepped(make_manager(make_model(), **options)) as engine:
        # What has been before a gap is unknown.
        engine.unknown = {"preemptions", "cached"}
        workload(engine)
    assert engine.session.connection.num_resyncs > 3
