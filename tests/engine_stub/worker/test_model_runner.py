"""Log probabilities of prompt tokens, however the prompt is cut, cached or preempted."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import LlamaForCausalLM

from engine_stub.worker import model_runner
from seqtop.sequence import SamplingParams, SequenceGroup
from seqtop.wire.messages import PreemptionMode
from tests.support.running import MakeEngine

PROMPT = [(7 * index) % 250 + 1 for index in range(37)]


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> torch.Tensor:
    """``[len(PROMPT) - 1, vocab]``: what transformers predicts for each token but the first."""
    reference = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    with torch.no_grad():
        return reference(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)


def assert_right(group: SequenceGroup, expected: torch.Tensor, count: int) -> None:
    assert group.prompt_logprobs is not None
    first, *others = group.prompt_logprobs
    assert first is None
    assert len(others) == len(PROMPT) - 1
    for token_id, candidates, row in zip(PROMPT[1:], others, expected, strict=True):
        assert candidates is not None
        best = row.topk(count).indices.tolist()
        assert set(candidates) == {token_id, *best}
        for token_id, logprob in candidates.items():
            assert logprob.logprob == pytest.approx(row[token_id].item(), abs=1e-4)
            assert logprob.rank == (row > row[token_id]).sum().item() + 1
            assert logprob.decoded_token is not None


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 5, "max_num_seqs": 4}], ids=["whole", "chunks"]
)
def test_they_are_those_of_transformers(
    make_engine: MakeEngine,
    expected: torch.Tensor,
    settings: dict[str, Any],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_runner, "_PROMPT_LOGPROBS_AT_ONCE", 16)
    engine = make_engine(**settings)
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=count)
    for _ in range(2):
        # The second time, the whole prompt is in the cache, and is computed all the same.
        (group,) = engine.generate([PROMPT], params)
        assert_right(group, expected, count)
        assert group.first_seq.data.get_num_cached_tokens() == 0


@pytest.mark.parametrize("mode", get_args(PreemptionMode))
def test_they_survive_preemption_in_the_middle_of_the_prompt(
    make_engine: MakeEngine, expected: torch.Tensor, mode: str
) -> None:
    engine = make_engine(
        num_gpu_blocks=13, max_num_batched_tokens=6, max_num_seqs=2, preemption_mode=mode
    )
    engine.add_request("a", [1] * 6, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    engine.step()
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1)
    (group,) = engine.add_request("b", PROMPT, params)
    preempted = []
    while engine.has_unfinished_requests():
        preempted += engine.step().preemptions
    assert ("b", mode) in {(preemption.request_id, preemption.mode) for preemption in preempted}
    assert_right(group, expected, 1)


def test_each_of_several_samples_has_them(make_engine: MakeEngine, expected: torch.Tensor) -> None:
    (group,) = make_engine().generate(
        [PROMPT], SamplingParams(n=2, seed=1, max_tokens=2, prompt_logprobs=2)
    )
    assert_right(group, expected, 2)


def test_nobody_else_has_them(make_engine: MakeEngine) -> None:
    (group,) = make_engine().generate([PROMPT], SamplingParams(temperature=0, max_tokens=2))
    assert group.prompt_logprobs is None
