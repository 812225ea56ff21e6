"""Fifty random workloads with all that the bundled engine can do, and nothing is found wrong."""

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publishing import StepPublisher, engine_info
from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.sequence import PoolingParams, SamplingParams, SequenceGroup
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, Step
from tests.support.checkpoints import add_draft_head, make_checkpoint

NUM_WORKLOADS = 50
MAX_MODEL_LEN = 48
BLOCK_SIZE = 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_checkpoint("llama", path, hidden_size=32, intermediate_size=48)
    return add_draft_head(path, 32)


class Watched:
    """An engine that publishes to a checker, message by message in the form of the wire."""

    def __init__(self, engine: LLMEngine, seen: Counter[str]) -> None:
        self.engine = engine
        self.seen = seen
        self.findings: list[Finding] = []
        self.checker = Checker()
        self.groups: list[SequenceGroup] = []
        self._publisher = StepPublisher(self)
        self.publish(engine_info(engine, engine_id="test", control=False))

    def publish(self, event: Event) -> None:
        self.findings += self.checker.apply(parsing.event(codec.encode(event)))
        if isinstance(event, Step):
            self.seen.update(each.mode for each in event.preemptions)
            self.seen["forks"] += sum(each.parent_seq_id is not None for each in event.sequences)
            self.seen["drafted"] += sum(each.num_draft_tokens or 0 for each in event.sequences)
            self.seen["accepted"] += sum(each.num_accepted_tokens or 0 for each in event.sequences)
            self.seen["several steps"] += event.execute.num_steps > 1
            self.seen["hits"] += event.stats.prefix_cache_hits

    def add(self, prompt: list[int], params: Any, priority: int) -> None:
        for group in self.engine.add_request(
            f"r{len(self.groups)}", prompt, params, priority=priority
        ):
            self.groups.append(group)
            self._publisher.arrived(group)
            self.seen[type(params).__name__] += 1

    def step(self) -> None:
        self._publisher.stepped(self.engine.step())
        self.engine.block_manager.check()

    def drain(self) -> None:
        while self.engine.has_unfinished_requests():
            self.step()
        self.findings += self.checker.end()

    def assert_same_ends(self) -> None:
        state = self.checker.state
        for group in self.groups:
            request = state.requests[group.request_id]
            assert request.metrics == group.metrics
            assert request.seq_ids == [seq.seq_id for seq in group.seqs]
            for seq in group.seqs:
                shown = state.sequences[seq.seq_id]
                assert tuple(shown.output_token_ids) == seq.get_output_token_ids()
                assert shown.text == seq.output_text
                assert shown.status is seq.status


def settings(rng: random.Random) -> dict[str, Any]:
    """Limits that hurt, and one of the ways to look ahead."""
    max_num_seqs = rng.randint(2, 8)
    chunked = rng.random() < 0.7
    lookahead: dict[str, Any] = rng.choice(
        (
            {"num_scheduler_steps": rng.randint(1, 6)},
            {"speculative": "ngram", "num_speculative_tokens": rng.randint(1, 5)},
            {"speculative": "draft-head", "num_speculative_tokens": rng.randint(1, 4)},
        )
    )
    budget = max_num_seqs * rng.randint(1, 4)
    return {
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": rng.randint(MAX_MODEL_LEN // BLOCK_SIZE, 30),
        "num_cpu_blocks": rng.choice((0, 6, 40)),
        "preemption_mode": rng.choice(("recompute", "swap")),
        "preemption_victim": rng.choice(("last", "largest")),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget if chunked else max(budget, 100),
        "max_model_len": MAX_MODEL_LEN,
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": rng.random() < 0.8,
        **lookahead,
    }


def params(rng: random.Random) -> SamplingParams | BeamSearchParams | PoolingParams:
    max_tokens = rng.randrange(1, 16)
    match rng.randrange(6):
        case 0:
            return BeamSearchParams(beam_width=rng.randint(1, 3), max_tokens=max_tokens)
        case 1:
            return PoolingParams()
        case 2:
            return SamplingParams(temperature=0, max_tokens=max_tokens, prompt_logprobs=1)
        case 3:
            return SamplingParams(n=rng.randint(2, 3), seed=rng.randrange(9), max_tokens=max_tokens)
        case 4:  # repeats itself, so that drafts stand
            return SamplingParams(
                temperature=0, max_tokens=max_tokens, allowed_token_ids=[7, 8], ignore_eos=True
            )
        case _:
            return SamplingParams(
                seed=rng.randrange(9), repetition_penalty=1.2, logprobs=2, stop=["a"],
                max_tokens=max_tokens,
            )  # fmt: skip


def test_nothing_is_found(checkpoint: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(NUM_WORKLOADS):
        rng = random.Random(seed)
        engine = LLMEngine(EngineConfig(model=checkpoint, device="cpu", **settings(rng)))
        run = Watched(engine, seen)
        shared = [rng.randrange(1, 257) for _ in range(12)]
        for _ in range(rng.randrange(4, 14)):
            own = [rng.randrange(1, 257) for _ in range(rng.randrange(1, 18))]
            # Beams that could not all run at once are refused.
            with contextlib.suppress(ValueError):
                run.add(shared[: rng.randrange(13)] + own, params(rng), rng.randrange(2))
            for _ in range(rng.randrange(4)):
                run.step()
            if run.groups and rng.random() < 0.15:
                seen["aborts"] += engine.abort_request(rng.choice(run.groups).request_id)
        run.drain()
        assert run.findings == [], f"seed {seed}"
        run.assert_same_ends()
    wanted = (
        *("recompute", "swap", "forks", "drafted", "accepted", "several steps", "hits", "aborts"),
        *("SamplingParams", "BeamSearchParams", "PoolingParams"),
    )
    assert all(seen[name] > 0 for name in wanted), seen
