"""Everything at once, in two stages: whatever comes when, of whatever length, in any pool."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.worker.pipeline import Pipeline
from seqtop.sequence import SamplingParams
from seqtop.wire.messages import PreemptionMode
from tests.support.checkpoints import add_draft_head, generate, make_checkpoint
from tests.support.running import LOOKAHEADS, drain, repeating_prompts

MAX_TOKENS = 14
# Each family with several iterations a schedule and with drafts, which exclude each other. A case
# starts two processes that import torch; make test has two stages in worker/test_pipeline.py.
CASES = [
    ("mistral-sliding", "ngram"),
    ("llama", "draft-head"),
    ("qwen3", "multi-step"),
    ("llama", "multi-step"),
    ("mistral-sliding", "multi-step"),
    ("qwen2", "multi-step"),
    ("qwen2", "draft-head"),
    ("qwen3", "ngram"),
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Callable[..., LLMEngine], list[list[int]]]]:
    """Makes engines over the same two processes, each with a pool of its own; what to expect."""
    family, lookahead = request.param
    path = add_draft_head(make_checkpoint(family, tmp_path_factory.mktemp(family)))
    started: list[Pipeline] = []

    def stages(*configs: Any) -> Pipeline:
        if not started:
            started.append(Pipeline(*configs))
        return started[0]

    def make(**more: Any) -> LLMEngine:
        return LLMEngine(
            EngineConfig(
                model=path,
                device="cpu",
                dtype="float32",
                block_size=4,
                max_model_len=80,
                pipeline_parallel_size=2,
                **LOOKAHEADS[lookahead],
                **more,
            )
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine_stub.worker.start.Pipeline", stages)
        yield make, generate(path, repeating_prompts(), MAX_TOKENS)
    for engine in started:
        engine.close()


@pytest.mark.release("many cases")
@given(
    num_gpu_blocks=st.integers(20, 60),
    max_num_seqs=st.integers(1, 6),
    extra_budget=st.integers(0, 30),
    caching=st.booleans(),
    num_cpu_blocks=st.integers(0, 30),
    mode=st.sampled_from(get_args(PreemptionMode)),
    requests=st.lists(
        st.tuples(
            st.integers(0, 5),  # the prompt
            st.integers(1, MAX_TOKENS),
            st.integers(0, 4),  # steps until the next one arrives
        ),
        min_size=2,
        max_size=10,
    ),
)
@settings(max_examples=6, deadline=None)
def test_any_requests_through_two_stages(
    case: tuple[Callable[..., LLMEngine], list[list[int]]],
    num_gpu_blocks: int,
    max_num_seqs: int,
    extra_budget: int,
    caching: bool,
    num_cpu_blocks: int,
    mode: str,
    requests: list[tuple[int, int, int]],
) -> None:
    make, expected = case
    engine = make(
        num_gpu_blocks=num_gpu_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=4 * max_num_seqs + extra_budget,
        enable_prefix_caching=caching,
        num_cpu_blocks=num_cpu_blocks,
        preemption_mode=mode,
    )
    groups = []
    for number, (index, max_tokens, num_steps) in enumerate(requests):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        groups += engine.add_request(f"r{number}", repeating_prompts()[index], params)
        for _ in range(num_steps):
            engine.step()
            engine.block_manager.check()
    drain(engine)
    for group, (index, max_tokens, _) in zip(groups, requests, strict=True):
        assert [*group.first_seq.get_output_token_ids()] == expected[index][:max_tokens]
    assert engine.block_manager.stats.used == 0
