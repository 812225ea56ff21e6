"""The draft head: what it remembers of whom, and that a good one is believed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine_stub.config import DEFAULT_MODEL, EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.model_executor.loader import WeightsError, load_model
from engine_stub.model_executor.stages import Stage
from engine_stub.spec_decode.draft_head import (
    FILE_NAME,
    DraftHead,
    DraftHeadProposer,
    load_draft_head,
)
from engine_stub.spec_decode.speculation import Draft, GeneratorOf, SpeculationOutcome
from seqtop.sequence import SamplingParams, SequenceData, SequenceGroupMetadata
from tests.support.checkpoints import add_draft_head, make_checkpoint

HIDDEN = 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_draft_head(make_checkpoint("qwen2", tmp_path_factory.mktemp("qwen2")))


@pytest.fixture
def proposer(checkpoint: Path) -> DraftHeadProposer:
    device, dtype = torch.device("cpu"), torch.float32
    head = load_draft_head(checkpoint, HIDDEN, device=device, dtype=dtype)
    return DraftHeadProposer(head, load_model(checkpoint, device=device, dtype=dtype))


def group(
    seq_id: int, output: list[int], *, is_prompt: bool = False, most: int = 3
) -> SequenceGroupMetadata:
    return SequenceGroupMetadata(
        request_id=f"r{seq_id}",
        is_prompt=is_prompt,
        seq_data={seq_id: SequenceData.from_seqs([5, 6, 7], output)},
        sampling_params=SamplingParams(temperature=0),
        block_tables={},
        num_speculative_tokens=most,
    )


def states(*seeds: int) -> torch.Tensor:
    return torch.stack(
        [torch.randn(HIDDEN, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )


def guesses(
    proposer: DraftHeadProposer, taken_in: list[tuple[torch.Tensor, int]], count: int
) -> list[int]:
    """The head's guesses after it has taken in states and tokens, and then its own guesses."""
    head, model = proposer._head, proposer._model
    memory = torch.zeros(1, HIDDEN)
    for hidden, token_id in taken_in:
        embedded = model.embed_tokens(torch.tensor([token_id]))
        guess, memory = head(hidden[None], embedded, memory)
    token_ids: list[int] = []
    while True:
        token_ids.append(int(model.compute_logits(guess).argmax()))
        if len(token_ids) == count:
            return token_ids
        guess, memory = head(guess, model.embed_tokens(torch.tensor(token_ids[-1:])), memory)


def no_generator(_: SequenceGroupMetadata) -> torch.Generator:
    raise AssertionError("greedy drafts are not drawn")


def propose(proposer: DraftHeadProposer, *groups: SequenceGroupMetadata) -> dict[int, list[int]]:
    drafts = proposer.propose([*groups], no_generator)
    return {seq_id: draft.token_ids for seq_id, draft in drafts.items()}


def test_it_begins_after_a_prompt(proposer: DraftHeadProposer) -> None:
    assert propose(proposer, group(0, [8])) == {}
    hidden = states(1, 2)
    proposer.observe(
        [SpeculationOutcome(group(i, [], is_prompt=True), hidden[i : i + 1], 0) for i in range(2)]
    )
    # In another order, one of them for fewer tokens; and one that nothing is known of.
    drafts = propose(proposer, group(1, [9], most=2), group(7, [1]), group(0, [8]))
    assert drafts == {
        0: guesses(proposer, [(hidden[0], 8)], 3),
        1: guesses(proposer, [(hidden[1], 9)], 2),
    }


def test_part_of_a_draft_stood(proposer: DraftHeadProposer) -> None:
    start, after = states(1), states(10, 11, 12, 13)
    proposer.observe([SpeculationOutcome(group(0, [], is_prompt=True), start, 0)])
    draft = propose(proposer, group(0, [8]))[0]
    proposer.observe([SpeculationOutcome(group(0, [8]), after, 1)])
    head, model = proposer._head, proposer._model
    memory = torch.zeros(1, HIDDEN)
    hidden = start
    for token_id in (8, draft[0]):
        hidden, memory = head(hidden, model.embed_tokens(torch.tensor([token_id])), memory)
    # The state is the model's own again, the memory goes on.
    guess, _ = head(after[1:2], model.embed_tokens(torch.tensor([99])), memory)
    expected = int(model.compute_logits(guess).argmax())
    assert propose(proposer, group(0, [8, draft[0], 99]))[0][0] == expected


def test_a_bonus_token_came_after_a_whole_draft(proposer: DraftHeadProposer) -> None:
    """Only with a memory that has taken in the draft's last token first."""
    start, after = states(1, 2), states(10, 11)
    proposer.observe(
        [SpeculationOutcome(group(i, [], is_prompt=True), start[i : i + 1], 0) for i in range(2)]
    )
    drafts = propose(proposer, group(0, [8], most=1), group(1, [9], most=1))
    others = states(20, 21)
    proposer.observe(
        [SpeculationOutcome(group(0, [8]), after, 1), SpeculationOutcome(group(1, [9]), others, 0)]
    )
    (last,) = drafts[0]
    taken_in = [(start[0], 8), (after[0], last), (after[1], 77)]
    drafts = propose(proposer, group(0, [8, last, 77]), group(1, [9, 55]))
    assert drafts == {
        0: guesses(proposer, taken_in, 3),
        1: guesses(proposer, [(start[1], 9), (others[0], 55)], 3),
    }


def test_a_step_without_drafts_makes_it_forget(proposer: DraftHeadProposer) -> None:
    proposer.observe([SpeculationOutcome(group(0, [], is_prompt=True), states(1), 0)])
    propose(proposer, group(0, [8]))
    proposer.observe([SpeculationOutcome(group(0, [8]), states(2), 0)])
    assert propose(proposer, group(0, [8, 9]))[0] == guesses(proposer, [(states(2)[0], 9)], 3)
    proposer.observe([])
    assert propose(proposer, group(0, [8, 9])) == {}


def make_engine(checkpoint: Path, **settings: Any) -> LLMEngine:
    defaults: dict[str, Any] = {
        "device": "cpu", "block_size": 4, "num_gpu_blocks": 64, "max_model_len": 64,
    }  # fmt: skip
    return LLMEngine(EngineConfig(model=checkpoint, **(defaults | settings)))


class Kept:
    """Keeps what a proposer was asked and said."""

    def __init__(self, proposer: Any) -> None:
        self.proposer: DraftHeadProposer = proposer
        self.num_bonus = 0

    def propose(
        self, groups: list[SequenceGroupMetadata], generator_of: GeneratorOf
    ) -> dict[int, Draft]:
        return self.proposer.propose(groups, generator_of)

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        self.proposer.observe(outcomes)
        self.num_bonus += len(self.proposer._with_bonus)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_that_are_right_are_kept(checkpoint: Path, temperature: float) -> None:
    """With two tokens to choose from, many a draft is right by chance, and many a one is wrong."""
    params = SamplingParams(
        temperature=temperature, max_tokens=30, ignore_eos=True, seed=3, allowed_token_ids=[8, 9],
        top_k=2,
    )  # fmt: skip
    engine = make_engine(checkpoint, speculative="draft-head", num_speculative_tokens=2)
    speculator = engine.worker.model_runner.speculator
    kept = speculator.proposer = Kept(speculator.proposer)
    head_bias = torch.full((257,), -1e9)
    head_bias[[8, 9]] = 0.0
    kept.proposer._probs = biased(kept.proposer._probs, head_bias)
    groups = [engine.add_request(f"r{i}", [i + 1] * 5, params)[0] for i in range(4)]
    drafted = []
    while engine.has_unfinished_requests():
        drafted += [update for update in engine.step().updates if update.num_draft_tokens]
    accepted = {update.num_accepted_tokens for update in drafted}
    assert max(accepted) == 2
    assert min(accepted) < 2
    assert kept.num_bonus > 0
    if temperature == 0:
        plain = make_engine(checkpoint)
        expected = plain.generate([[i + 1] * 5 for i in range(4)], params)
        for mine, other in zip(groups, expected, strict=True):
            assert mine.first_seq.get_output_token_ids() == other.first_seq.get_output_token_ids()


def biased(probs: Callable[..., torch.Tensor], bias: torch.Tensor) -> Callable[..., torch.Tensor]:
    def biased(hidden: torch.Tensor, groups: list[SequenceGroupMetadata]) -> torch.Tensor:
        unbiased = probs(hidden, groups)
        left = (unbiased.clamp(min=1e-30).log() + bias).softmax(-1)
        certain = torch.zeros_like(left).scatter_(-1, left.argmax(-1, keepdim=True), 1.0)
        is_greedy = torch.tensor([group.sampling_params.temperature == 0 for group in groups])
        return torch.where(is_greedy[:, None], certain, left)

    return biased


def test_the_bundled_model_has_a_head_that_is_often_right() -> None:
    prompts = ["Once upon a time", "User: Tell me a story about a shy fox.\nBot:", "Dear diary,"]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    settings = {"block_size": 16, "max_model_len": 256}
    expected = make_engine(DEFAULT_MODEL, **settings).generate(prompts, params)
    engine = make_engine(DEFAULT_MODEL, speculative="draft-head", **settings)
    groups = [engine.add_request(f"r{i}", prompt, params)[0] for i, prompt in enumerate(prompts)]
    drafted = kept = 0
    while engine.has_unfinished_requests():
        for update in engine.step().updates:
            drafted += update.num_draft_tokens or 0
            kept += update.num_accepted_tokens or 0
    for mine, other in zip(groups, expected, strict=True):
        assert mine.first_seq.get_output_token_ids() == other.first_seq.get_output_token_ids()
    assert kept > 0.25 * drafted > 0


def test_a_model_without_a_head(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no draft_head.safetensors, which"):
        make_engine(path, speculative="draft-head")


def test_a_head_of_another_model(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path)
    add_draft_head(path, 32)
    with pytest.raises(WeightsError, match="no draft head for this model"):
        make_engine(path, speculative="draft-head")
    save_file({"other": torch.zeros(3)}, path / FILE_NAME)
    with pytest.raises(WeightsError, match="no draft head for this model"):
        make_engine(path, speculative="draft-head")
    (path / FILE_NAME).write_bytes(b"no such file")
    with pytest.raises(WeightsError, match="no draft head for this model"):
        make_engine(path, speculative="draft-head")


def test_the_last_stage_of_an_untied_model_has_the_embedding(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path)
    device, dtype = torch.device("cpu"), torch.float32
    last = load_model(path, device=device, dtype=dtype, stage=Stage(1, 2), embeds=True)
    whole = load_model(path, device=device, dtype=dtype)
    assert torch.equal(last.embed_tokens.weight, whole.embed_tokens.weight)
    plain = load_model(path, device=device, dtype=dtype, stage=Stage(1, 2))
    assert not hasattr(plain, "embed_tokens")


def test_a_head_has_few_weights() -> None:
    assert sum(weights.numel() for weights in DraftHead(256).parameters()) * 2 < 2**20
