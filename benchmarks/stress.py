"""Thousands of random requests through a pool that is too small for them.

Every request has to end, every block to come back. Prints how long requests queued, in steps,
and fails if the wait of any was out of proportion to what was ahead of it.

    python benchmarks/stress.py --requests 10000
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from engine_stub.beam_search import BeamSearchParams
from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from seqtop.sequence import SamplingParams, SequenceStatus

_VOCAB = 64


def make_model(path: Path) -> None:
    """A Llama of one layer with random weights, and words for its tokens."""
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


def stress(model: Path, num_requests: int, *, seed: int = 0) -> dict[str, object]:
    """Run the requests; raises AssertionError if one starves or a block is lost."""
    rng = random.Random(seed)
    engine = LLMEngine(
        EngineConfig(
            model=model,
            device="cpu",
            block_size=4,
            num_gpu_blocks=160,
            num_cpu_blocks=60,
            preemption_mode="swap",
            max_num_seqs=48,
            max_num_batched_tokens=256,
            max_model_len=64,
        )
    )
    arrived: dict[str, int] = {}
    queued: list[int] = []
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
            engine.add_request(request_id, prompt, _params(rng))
            arrived[request_id] = step
            num_added += 1
            if rng.random() < 0.1:
                engine.abort_request(f"r{rng.randrange(num_added)}")
        if not engine.has_unfinished_requests():
            step += 1
            continue
        record = engine.step()
        step += 1
        for each in record.preemptions:
            preemptions[each.mode] += 1
        most_waiting = max(most_waiting, record.num_waiting)
        for scheduled in record.scheduled:
            began = arrived.pop(scheduled.seq_group.request_id, None)
            if began is not None:
                queued.append(step - 1 - began)
        for group in (*record.finished, *record.aborted):
            ends[group.first_seq.status] += 1
            arrived.pop(group.request_id, None)
        if step % 50 == 0:
            engine.block_manager.check()
    engine.block_manager.check()
    stats = engine.block_manager.stats
    assert stats.used == 0, "blocks are lost"
    assert stats.free_cpu == stats.total_cpu, "host blocks are lost"
    assert sum(ends.values()) == num_requests, "a request has not ended"
    assert not engine.seq_groups
    # First come, first served: nobody waits for more than all that was there before.
    assert max(queued) <= 10 * most_waiting + 200, "a request has starved"
    return {
        "requests": num_requests,
        "steps": step,
        "seconds": round(time.perf_counter() - begin, 1),
        "ends": {status.name: count for status, count in ends.items() if count},
        "preemptions": preemptions,
        "most_waiting": most_waiting,
        "queued_steps": {
            "deciles": [round(each) for each in quantiles(queued, n=10)],
            "most": max(queued),
        },
    }


def _params(rng: random.Random) -> SamplingParams | BeamSearchParams:
    max_tokens = rng.randint(1, 24)
    if rng.random() < 0.04:
        return BeamSearchParams(beam_width=rng.randint(2, 4), max_tokens=min(max_tokens, 12))
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        make_model(Path(directory))
        print(json.dumps(stress(Path(directory), options.requests, seed=options.seed), indent=2))


if __name__ == "__main__":
    main()
