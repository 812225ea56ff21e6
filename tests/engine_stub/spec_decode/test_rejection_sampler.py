"""Rejection sampling gives the distribution without drafts."""

import pytest
import torch

from engine_stub.spec_decode.rejection_sampler import accept
from engine_stub.spec_decode.speculation import Draft
from seqtop.sequence import SamplingParams
from tests.support.running import MakeEngine, run

LOOP = [11, 12, 13, 14, 15, 16] * 3


VOCAB = 6


DRAWS = 6_000


def target(seed: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, VOCAB, generator=generator).mul(1.5).softmax(-1)


def accepted(probs: torch.Tensor, draft: Draft, generator: torch.Generator) -> list[int]:
    """The tokens that stand, and the one that follows them."""
    num_accepted, next_id = accept(probs, draft, generator)
    return [*draft.token_ids[: int(num_accepted)], int(next_id)]


@pytest.mark.parametrize("certain", [True, False])
def test_accepted_tokens_are_distributed_as_the_target(certain: bool) -> None:
    """Chi-square of the first two tokens; the target's second depends on the first."""
    firsts, seconds = target(1, 1)[0], target(2, VOCAB)
    proposed = target(3, 2)
    generator = torch.Generator().manual_seed(4)
    counts = torch.zeros(VOCAB, VOCAB)
    for _ in range(DRAWS):
        if certain:
            draft = Draft([2, 4])
        else:
            drawn = torch.multinomial(proposed, 1, generator=generator)[:, 0].tolist()
            draft = Draft(drawn, proposed)
        probs = torch.stack([firsts, seconds[draft.token_ids[0]], target(5, 1)[0]])
        first, *more = accepted(probs, draft, generator)
        second = more[0] if more else int(torch.multinomial(seconds[first], 1, generator=generator))
        counts[first, second] += 1
    expected = DRAWS * firsts[:, None] * seconds
    assert expected.min() > 3
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 35 degrees of freedom: a right one is above 66.6 once in a thousand times.
    assert chi_square < 66.6


def test_a_greedy_target_takes_no_chances() -> None:
    certain = torch.eye(VOCAB)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert accepted(certain[[3, 1, 5]], Draft([3, 1]), generator) == [3, 1, 5]
        assert accepted(certain[[3, 1, 5]], Draft([3, 2]), generator) == [3, 1]
        assert accepted(certain[[3, 1, 5]], Draft([0, 1], target(1, 2)), generator) == [3]


def test_samples_are_distributed_as_without_drafts(make_engine: MakeEngine) -> None:
    """The engine's own samples of a request that leaves four tokens: with drafts and without."""
    # 600 samples, as five requests: one may ask for at most 128.
    params = [
        SamplingParams(
            n=120, temperature=1.5, seed=seed, max_tokens=3, ignore_eos=True,
            allowed_token_ids=[11, 12, 13, 14], logprobs=0,
        )
        for seed in range(5, 605, 120)  # whose samples have the seeds 5 to 604
    ]  # fmt: skip
    counts = []
    for settings in ({}, {"speculative": "ngram", "num_speculative_tokens": 2}):
        engine = make_engine(num_gpu_blocks=900, max_num_seqs=200, **settings)
        groups, records = run(engine, [LOOP] * len(params), *params)
        table = torch.zeros(4, 4)
        for group in groups:
            _, second, third = group.first_seq.get_output_token_ids()
            table[second - 11, third - 11] += 1
        counts.append(table)
    updates = [update for record in records for update in record.updates if update.num_draft_tokens]
    accepted = [update.num_accepted_tokens for update in updates]
    assert 0 < sum(bool(num) for num in accepted) < len(accepted)
    plain, drafted = counts
    both = plain + drafted
    # Of two samples of one distribution, with 15 degrees of freedom: above 37.7 once in a thousand.
    chi_square = float(((plain - drafted) ** 2 / both.clamp(min=1)).sum())
    assert chi_square < 37.7
