"""Embeddings are transformers' hidden states, pooled; their requests are seen like any other."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher
from engine_stub.worker.model_output import ModelOutput
from seqtop.sequence import (
    ExecuteModelRequest,
    PoolerOutput,
    PoolingParams,
    SamplingParams,
    SequenceGroup,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.wire import decode, encode, parsing
from seqtop.wire.messages import Event
from tests.support.checkpoints import make_checkpoint

HIDDEN_SIZE = 64


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param))


def make_engine(checkpoint: Path, **settings: Any) -> LLMEngine:
    defaults: dict[str, Any] = {
        "device": "cpu",
        "block_size": 4,
        "num_gpu_blocks": 64,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 10,
        "max_model_len": 64,
    }
    return LLMEngine(EngineConfig(model=checkpoint, **(defaults | settings)))


def prompts() -> list[list[int]]:
    rng = random.Random(1)
    shared = [rng.randrange(1, 257) for _ in range(13)]
    own = [[rng.randrange(1, 257) for _ in range(length)] for length in (1, 4, 31, 8, 23)]
    return [shared + prompt if index % 2 else prompt for index, prompt in enumerate(own)]


def hidden_states(checkpoint: Path) -> list[Tensor]:
    """Of every token of each prompt, ``[tokens, hidden_size]``."""
    reference = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        return [reference(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts()]


def vectors(groups: list[SequenceGroup]) -> Tensor:
    return torch.stack([group.pooled_data for group in groups])


@pytest.mark.parametrize("budget", [10, 256], ids=["chunks", "whole"])
@pytest.mark.parametrize("pooling_type", ["MEAN", "LAST"])
def test_vectors_are_those_of_transformers(
    checkpoint: Path, pooling_type: str, budget: int
) -> None:
    expected = torch.stack(
        [
            states.mean(0) if pooling_type == "MEAN" else states[-1]
            for states in hidden_states(checkpoint)
        ]
    )
    raw, normed = (
        make_engine(
            checkpoint,
            pooling_type=pooling_type,
            pooling_normalize=pooling_normalize,
            max_num_batched_tokens=budget,
        )
        for pooling_normalize in (False, True)
    )
    got = vectors(raw.generate(prompts(), PoolingParams()))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    # Of the second run, everything could have come from the prefix cache.
    for _ in range(2):
        got = vectors(normed.generate(prompts(), PoolingParams()))
        unit = expected / expected.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(got, unit, atol=1e-5, rtol=0)
    cut = vectors(normed.generate(prompts(), PoolingParams(dimensions=8)))
    unit = expected[:, :8] / expected[:, :8].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(cut, unit, atol=1e-5, rtol=0)


def test_pooling_among_generation_and_preemption(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, pooling_type="MEAN", num_gpu_blocks=24, max_num_seqs=8)
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    generated, pooled = [], []
    for index, prompt in enumerate(prompts()):
        generated += engine.add_request(f"g{index}", prompt, greedy)
        pooled += engine.add_request(f"p{index}", prompt, PoolingParams(), priority=index % 2)
    preempted: set[str] = set()
    while engine.has_unfinished_requests():
        preempted |= {preemption.request_id for preemption in engine.step().preemptions}
        engine.block_manager.check()
    assert preempted
    expected = torch.stack([states.mean(0) for states in hidden_states(checkpoint)])
    expected /= expected.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(vectors(pooled), expected, atol=1e-5, rtol=0)
    alone = make_engine(checkpoint).generate(prompts(), greedy)
    assert [group.first_seq.get_output_token_ids() for group in generated] == [
        group.first_seq.get_output_token_ids() for group in alone
    ]


def test_a_request_as_viewers_see_it(checkpoint: Path) -> None:
    state = EngineState()

    class Viewer:
        def publish(self, event: Event) -> None:
            state.apply(parsing.event(encode(event)))

    engine, publisher = make_engine(checkpoint), StepPublisher(Viewer())
    params = PoolingParams(dimensions=5)
    (group,) = engine.add_request("p", [5] * 25, params)
    publisher.arrived(group)
    computed = []
    while engine.has_unfinished_requests():
        publisher.stepped(engine.step())
        (sequence,) = state.sequences.values()
        computed.append(sequence.num_computed_tokens)
    assert computed[:3] == [10, 20, 25]
    request = state.requests["p"]
    assert request.pooling_params == params
    assert request.sampling_params is None
    assert request.finish_reason == "stop"
    assert sequence.status is SequenceStatus.FINISHED_STOPPED
    assert sequence.output_token_ids == []
    assert group.metrics.first_token_time is None
    assert group.metrics.finished_time is not None


def test_pooled_output_has_a_wire_form(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    execute, outputs = engine.worker.execute_model, []

    def keeping(execute_model_req: ExecuteModelRequest) -> ModelOutput:
        outputs.append(execute(execute_model_req))
        return outputs[-1]

    engine.worker.execute_model = keeping
    (group,) = engine.generate([[1, 2, 3]], PoolingParams())
    back = decode(encode(outputs[0].pooler_output), PoolerOutput)
    assert torch.equal(back[0].data, group.pooled_data)
    assert engine.worker.seq_groups.keys() == {"generate-0"}


def test_a_prompt_may_fill_the_context(checkpoint: Path) -> None:
    engine = make_engine(checkpoint)
    fits, too_long = engine.generate([[1] * 64, [1] * 65], PoolingParams())
    assert fits.pooled_data.shape == (HIDDEN_SIZE,)
    assert too_long.first_seq.status is SequenceStatus.FINISHED_IGNORED
    assert too_long.pooled_data is None


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (PoolingParams(dimensions=65), "dimensions must be from 1 to 64"),
        (PoolingParams(dimensions=0), "dimensions must be from 1 to 64"),
        (PoolingParams(use_cross_encoder=True), "embeddings only"),
    ],
)
def test_options_that_pooling_lacks_are_refused(
    checkpoint: Path, params: PoolingParams, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_engine(checkpoint).add_request("p", [1], params)


def test_an_unknown_pooling_type(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="pooling_type must be LAST or MEAN, got 'CLS'"):
        make_engine(checkpoint, pooling_type="CLS")


def test_a_prompt_that_is_computed_twice_is_summed_once(checkpoint: Path) -> None:
    engine = make_engine(checkpoint, pooling_type="MEAN")
    (group,) = engine.add_request("p", prompts()[2], PoolingParams())
    engine.step()
    engine.step()
    assert 0 < group.first_seq.get_num_computed_tokens() < group.first_seq.get_len()
    # No decode is in need of its blocks here, so preempt it by hand.
    engine.scheduler._preempt(group, group)
    while engine.has_unfinished_requests():
        engine.step()
    expected = hidden_states(checkpoint)[2].mean(0)
    torch.testing.assert_close(group.pooled_data, expected / expected.norm(), atol=1e-5, rtol=0)
