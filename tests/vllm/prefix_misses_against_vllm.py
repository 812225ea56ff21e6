"""The causes of prefix misses that a viewer gets, against those of a spy inside vLLM's cache.

Run by `make test-vllm`, as `stepped_against_vllm.py`.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import token_executor
from cache_spy import CacheSpy, Cause
from stepping import make_core, stepped

from seqtop.prefix_cache.prefix_history import MAX_RUNS
from seqtop.state.listener import StateChange
from seqtop.wire import parsing
from seqtop.wire.messages import PrefixMiss, Step

BLOCK_SIZE = 16
MIN_SHARE = 0.99


class Shown:
    """The misses of each admission, as the messages of a stream have them."""

    def __init__(self, session: Any) -> None:
        self.by_request: dict[str, list[list[PrefixMiss]]] = {}
        self._session = session
        session.add_listener(self._note)

    def _note(self, change: StateChange) -> None:
        event = parsing.event(change.payload) if change.event is not None else None
        if not isinstance(event, Step):
            return
        for update in event.sequences:
            if update.prefix_misses is not None:
                name = self._session.state.sequences[update.seq_id].request_id
                self.by_request.setdefault(name, []).append(update.prefix_misses)


def block_causes(misses: list[PrefixMiss]) -> list[Cause]:
    return [
        Cause(miss.cause, miss.step, None if miss.cause == "extra_keys" else miss.request_id)
        for miss in misses
        for _ in range(-(-miss.num_tokens // BLOCK_SIZE))
    ]


def turn(rng: random.Random, stems: list[list[int]], past: list[tuple[str, list[int]]]) -> Any:
    """Returns a prompt: the begin of a stem, or a former request with its output and more."""
    if past and rng.random() < 0.4:
        name, before = rng.choice(past)
        answer = [token_executor.token(f"{name}-00000000", len(before) + i) for i in range(20)]
        return [*before, *answer[: rng.randrange(21)], *rng.choice(stems)[: rng.randrange(1, 40)]]
    return [*rng.choice(stems)[: rng.randrange(1, 130)], *[rng.randrange(3, 90)] * rng.randrange(5)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_scheduling": True},
        {"scheduling_policy": "priority"},
        {"async_scheduling": True, "max_num_batched_tokens": 32},
    ],
    ids=["sync", "async", "priority", "chunks"],
)
def test_causes_are_those_of_a_spy_inside_the_cache(options: dict[str, Any], seed: int) -> None:
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams

    rng = random.Random(seed)
    num_blocks = rng.choice((24, 40))
    core = make_core(num_gpu_blocks_override=num_blocks, enable_lora=True, max_loras=2, **options)
    spy = CacheSpy(core.scheduler, BLOCK_SIZE)
    stems = [[rng.randrange(3, 290) for _ in range(130)] for _ in range(3)]
    past: list[tuple[str, list[int]]] = []
    with stepped(core) as engine:
        shown = Shown(engine.session)
        prompt = stems[0]
        for number in range(120):
            more: dict[str, Any] = {}
            if "scheduling_policy" in options:
                more["priority"] = rng.randrange(3)
            kind = rng.randrange(8)
            if kind == 0:
                more["cache_salt"] = f"salt-{rng.randrange(2)}"
            elif kind == 1:
                more["lora_request"] = LoRARequest(f"lora-{number % 2}", 1 + number % 2, "/nowhere")
            elif kind == 2:
                more["params"] = SamplingParams(
                    max_tokens=5, prompt_logprobs=1, ignore_eos=True, detokenize=False
                )
            name = f"req-{number}"
            if rng.random() < 0.8:  # else the prompt before once more
                prompt = turn(rng, stems, past)[:200]
            engine.add(name, prompt, max_tokens=30, **more)
            past.append((name, prompt))
            for _ in range(rng.choice((0, 1, 20))):
                engine.step()
            if number == 60:
                engine.run()
                assert engine.scheduler.reset_prefix_cache()
        engine.run()
        requests = engine.session.state.requests.values()
        num_preemptions = sum(request.num_preemptions for request in requests)
    spy.close()
    truth: dict[str, list[list[Cause]]] = {}
    for request_id, causes in spy.admissions:
        without_suffix = [
            cause._replace(request_id=cause.request_id and cause.request_id[:-9])
            for cause in causes
        ]
        truth.setdefault(request_id[:-9], []).append(without_suffix)
    assert shown.by_request.keys() == truth.keys()
    seen: Counter[str] = Counter()
    num_right = 0
    for name, admissions in truth.items():
        for misses, causes in zip(shown.by_request[name], admissions, strict=True):
            assert len(misses) <= MAX_RUNS
            pairs = list(zip(block_causes(misses), causes, strict=True))
            num_right += sum(one == other for one, other in pairs)
            seen.update(cause.cause for cause in causes)
    share = num_right / seen.total()
    print(f"\n{options}, seed {seed}: {num_right} of {seen.total()} blocks, {share:.2%}, {seen}")
    print(f"{num_preemptions} preemptions, {sum(map(len, truth.values()))} admissions")
    assert share >= MIN_SHARE
    assert num_preemptions > 0
    assert seen.keys() >= {"new_tokens", "evicted", "partial_block", "not_cacheable", "extra_keys"}
