"""The sampler draws from the distribution each request asks for, whoever shares the batch."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_stub.model_executor.sampler import RowSampling, SampledToken, Sampler
from seqtop.sequence import SamplingParams, SequenceData

VOCAB = 12
LOGITS = torch.tensor([2.0, 1.5, 1.4, 1.0, 0.3, 0.0, -0.2, -0.5, -1.0, -1.1, -2.0, -4.0])
NUM_DRAWS = 20_000


def request(
    prompt: tuple[int, ...] = (0,),
    output: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
    **params: Any,
) -> RowSampling:
    return RowSampling(SamplingParams(**params), SequenceData.from_seqs(prompt, output), generator)


def make_sampler(seed: int = 0) -> Sampler:
    return Sampler(torch.Generator().manual_seed(seed))


def sample(row: RowSampling, logits: torch.Tensor = LOGITS) -> SampledToken:
    return make_sampler()(logits[None], [row])[0]


def frequencies(row: RowSampling) -> torch.Tensor:
    rows = LOGITS.expand(NUM_DRAWS, -1)
    samples = make_sampler()(rows, [row] * NUM_DRAWS)
    counts = torch.bincount(torch.tensor([s.token_id for s in samples]), minlength=VOCAB)
    return counts / NUM_DRAWS


def renormalised(*keep: int) -> torch.Tensor:
    probs = torch.zeros(VOCAB)
    probs[[*keep]] = LOGITS.softmax(-1)[[*keep]]
    return probs / probs.sum()


def moved(changes: dict[int, float]) -> torch.Tensor:
    """The distribution of logits of which some are changed by addition."""
    logits = LOGITS.clone()
    for token_id, change in changes.items():
        logits[token_id] += change
    return logits.softmax(-1)


@pytest.mark.parametrize(
    ("row", "probs"),
    [
        (request(), moved({})),
        (request(temperature=0.5), (LOGITS / 0.5).softmax(-1)),
        (request(temperature=2.0), (LOGITS / 2.0).softmax(-1)),
        (request(top_k=3), renormalised(0, 1, 2)),
        (request(top_k=100), moved({})),
        # The token that crosses the mass is kept: two have 0.51, three 0.68.
        (request(top_p=0.55), renormalised(0, 1, 2)),
        (request(top_p=1e-6), renormalised(0)),
        # The mass is that within the best three: one has 0.46, two 0.75.
        (request(top_k=3, top_p=0.6), renormalised(0, 1)),
        # 1.0 is one nat below the best, 0.3 is 1.7 below.
        (request(min_p=math.exp(-1.3)), renormalised(0, 1, 2, 3)),
        (request(logit_bias={3: 1.0, 11: 5.0}), moved({3: 1.0, 11: 5.0})),
        (request(allowed_token_ids=[2, 5, 6]), renormalised(2, 5, 6)),
        # Prompt and output become less likely: 1.5 is divided, -1 is multiplied.
        (
            request(prompt=(0, 8), output=(1,), repetition_penalty=1.5),
            moved({0: 2.0 / 1.5 - 2.0, 1: 1.5 / 1.5 - 1.5, 8: -0.5}),
        ),
        # These count the output alone.
        (
            request((2, 2, 2), (0, 1, 0, 0), presence_penalty=0.5, frequency_penalty=0.25),
            moved({0: -0.5 - 3 * 0.25, 1: -0.5 - 0.25}),
        ),
    ],
)
def test_tokens_are_drawn_from_the_wanted_distribution(
    row: RowSampling, probs: torch.Tensor
) -> None:
    """Frequencies are within five standard deviations."""
    deviation = (probs * (1 - probs) / NUM_DRAWS).sqrt()
    difference = (frequencies(row) - probs).abs()
    assert (difference <= 5 * deviation).all(), difference / deviation


def test_greedy_takes_the_likeliest() -> None:
    assert sample(request(temperature=0)).token_id == 0
    assert sample(request(temperature=0), -LOGITS).token_id == 11


def test_rounding_of_the_mass_costs_no_token_of_a_neighbour() -> None:
    """A row that wants all tokens gets them, though the batch is sorted and summed."""
    logits = torch.zeros(2, 5000)
    logits[:, 0] = 20.0
    sampler = make_sampler()
    kept = []
    draw = torch.Tensor.softmax

    def spy(scores: torch.Tensor, dim: int) -> torch.Tensor:
        kept.append((scores > -torch.inf).sum(-1).tolist())
        return draw(scores, dim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "softmax", spy)
        sampler(logits, [request(top_p=1.0), request(top_p=0.5)])
    assert kept[-1] == [5000, 1]


@given(
    tenths=st.lists(st.integers(-60, 60), min_size=2, max_size=20, unique=True),
    top_k=st.integers(0, 25),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_never_draws_what_truncation_excludes(
    tenths: list[int], top_k: int, top_p: float, seed: int
) -> None:
    logits = [tenth / 10 for tenth in tenths]
    probs = torch.tensor(logits, dtype=torch.float64).softmax(-1).tolist()
    order = sorted(range(len(probs)), key=lambda index: -probs[index])[: top_k or None]
    total = sum(probs[index] for index in order)
    allowed, mass = set(), 0.0
    for index in order:
        if mass / total > top_p + 1e-6:
            break
        allowed.add(index)
        mass += probs[index]
    rows = torch.tensor([logits] * 20)
    wanted = request(top_k=top_k, top_p=top_p)
    drawn = {sample.token_id for sample in make_sampler(seed)(rows, [wanted] * 20)}
    assert drawn <= allowed


def test_a_seed_gives_the_same_tokens_whoever_else_is_in_the_batch() -> None:
    def draw(neighbours: int, sampler_seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(42)
        sampler = make_sampler(sampler_seed)
        tokens = []
        for _ in range(30):
            batch = [request(temperature=1.5) for _ in range(neighbours)]
            batch.append(request(generator=generator, seed=42))
            rows = LOGITS.expand(len(batch), -1)
            tokens.append(sampler(rows, batch)[-1].token_id)
        return tokens

    assert draw(0, 1) == draw(3, 2)
    assert len(set(draw(0, 1))) > 2


def test_a_mixed_batch_gives_each_row_its_own() -> None:
    batch = [
        request(temperature=0),
        request(temperature=1.0, top_k=1),
        request(temperature=0, logit_bias={7: 100.0}),
        request(temperature=1.0, allowed_token_ids=[9]),
        request(temperature=0, logprobs=2),
    ]
    samples = make_sampler()(LOGITS.expand(5, -1), batch)
    assert [sample.token_id for sample in samples] == [0, 0, 7, 9, 0]
    assert [len(sample.logprobs) for sample in samples] == [1, 1, 1, 1, 2]


def test_logits_are_left_as_they_were() -> None:
    rows = LOGITS.expand(2, -1).clone()
    make_sampler()(
        rows,
        [
            request(logit_bias={1: 5.0}, top_k=2, min_p=0.1),
            request(output=(1,), repetition_penalty=2.0, presence_penalty=1.0),
        ],
    )
    assert torch.equal(rows, LOGITS.expand(2, -1))


def test_logprobs_are_the_models_own_with_ranks() -> None:
    expected = LOGITS.log_softmax(-1)
    got = sample(request(temperature=0, logit_bias={4: 50.0}, logprobs=2)).logprobs
    # The sampled token first, then the best.
    assert list(got) == [4, 0, 1]
    assert [logprob.rank for logprob in got.values()] == [5, 1, 2]
    for token_id, logprob in got.items():
        assert logprob.logprob == pytest.approx(expected[token_id].item())
    assert len(sample(request(temperature=0, logprobs=0)).logprobs) == 1
    assert len(sample(request(temperature=0, logprobs=500)).logprobs) == VOCAB


def test_stop_tokens_are_out_of_reach_before_min_tokens() -> None:
    wanted: dict[str, Any] = {"temperature": 0, "min_tokens": 2, "stop_token_ids": [0, 1]}
    assert sample(request(output=(), **wanted)).token_id == 2
    assert sample(request(output=(5,), **wanted)).token_id == 2
    assert sample(request(output=(5, 5), **wanted)).token_id == 0
