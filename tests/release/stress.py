"""Runs thousands of random requests in a pool that is too small for them.

Once with preemption by recomputation, once by swapping to a host pool that is too small as well, so
that groups without room there are recomputed. Every request must end, every block must be freed.

No request may wait longer than those ahead of it take one after the other: the first of them
advances in every step, by a token or by all of its prefill, and is never preempted. Prints the
waits in steps, and the largest share of that bound.

    python -m tests.release stress --requests 10000
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any, get_args

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from seqtop.sequence import SamplingParams, SequenceStatus
from seqtop.wire.messages import PreemptionMode

_VOCAB = 64


def make_model(path: Path) -> None:
    """Writes a Llama of one layer with random weights, and words as tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    words = {f"w{index}": index for index in range(_VOCAB)}
    Tokenizer(models.WordLevel(words, unk_token="w1")).save(str(path / "tokenizer.json"))


def stress(
    model: Path, num_requests: int, mode: PreemptionMode, *, seed: int = 0
) -> dict[str, Any]:
    """Runs the requests; raises AssertionError if one starves or a block is lost."""
    rng = random.Random(seed)
    engine = LLMEngine(
        EngineConfig(
            model=model,
            device="cpu",
            block_size=4,
            num_gpu_blocks=160,
            num_cpu_blocks=6 if mode == "swap" else 0,
            preemption_mode=mode,
            max_num_seqs=48,
            max_num_batched_tokens=256,
            max_model_len=64,
        )
    )
    arrived: dict[str, int] = {}
    queued: list[int] = []
    bounds: dict[str, int] = {}  # by request, the steps that those ahead of it could take
    nearest = 0.0
    most_steps: dict[str, int] = {}  # by unfinished request, the most that it could take alone
    ends = {status: 0 for status in SequenceStatus if SequenceStatus.is_finished(status)}
    preemptions = {"recompute": 0, "swap": 0}
    step = num_added = most_waiting = 0
    begin = time.perf_counter()
    while num_added < num_requests or engine.has_unfinished_requests():
        # Bursts and lulls: the queue grows to hundreds, and drains again.
        is_burst = step % 200 < 80
        while num_added < num_requests and is_burst and rng.random() < 0.85:
            request_id = f"r{num_added}"
            prompt = [5] * rng.randrange(9) + rng.choices(range(1, _VOCAB), k=rng.randint(1, 30))
            params = _params(rng)
            engine.add_request(request_id, prompt, params)
            arrived[request_id] = step
            bounds[request_id] = sum(most_steps.values())
            assert params.max_tokens is not None
            most_steps[request_id] = 2 + params.max_tokens  # a prefill, and another one
            num_added += 1
            if rng.random() < 0.1:
                engine.abort_request(f"r{rng.randrange(num_added)}")
        if not engine.has_unfinished_requests():
            step += 1
            continue
        record = engine.step()
        step += 1
        for preemption in record.preemptions:
            preemptions[preemption.mode] += 1
        most_waiting = max(most_waiting, record.num_waiting)
        for scheduled in record.scheduled:
            began = arrived.pop(scheduled.seq_group.request_id, None)
            if began is not None:
                queued.append(step - 1 - began)
                bound = bounds.pop(scheduled.seq_group.request_id)
                assert queued[-1] <= bound, "a request has starved"
                nearest = max(nearest, queued[-1] / max(bound, 1))
        for group in (*record.finished, *record.aborted):
            ends[group.first_seq.status] += 1
            arrived.pop(group.request_id, None)
            bounds.pop(group.request_id, None)
            del most_steps[group.request_id]
        if step % 50 == 0:
            engine.block_manager.check()
    engine.block_manager.check()
    stats = engine.block_manager.stats
    assert stats.used == 0, "blocks are lost"
    assert stats.free_cpu == stats.total_cpu, "host blocks are lost"
    assert sum(ends.values()) == num_requests, "a request has not ended"
    assert not engine.seq_groups
    return {
        "requests": num_requests,
        "steps": step,
        "seconds": round(time.perf_counter() - begin, 1),
        "ends": {status.name: count for status, count in ends.items() if count},
        "preemptions": preemptions,
        "most_waiting": most_waiting,
        "queued_steps": {
            "deciles": [round(decile) for decile in quantiles(queued, n=10)],
            "most": max(queued),
            "most_of_bound": round(nearest, 3),
        },
    }


def _params(rng: random.Random) -> SamplingParams | BeamSearchParams:
    max_tokens = rng.randint(1, 24)
    if rng.random() < 0.04:
        return BeamSearchParams(beam_width=rng.randint(2, 4), max_tokens=min(max_tokens, 12))
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        make_model(Path(directory))
        modes: tuple[PreemptionMode, ...] = get_args(PreemptionMode)
        outcomes = {
            mode: stress(Path(directory), options.requests // 2, mode, seed=options.seed)
            for mode in modes
        }
    print(json.dumps(outcomes, indent=2))
