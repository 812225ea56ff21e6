"""Which tokens of a draft stand, so that outputs are distributed as if there had been no draft.

Modified rejection sampling (Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", 2023; Chen et al., "Accelerating Large Language Model Decoding with Speculative
Sampling", 2023): with p the distribution that the request samples from and q the one that the
draft was drawn from, a token x stands with probability min(1, p(x) / q(x)). The first that does not
is replaced by a draw from max(p - q, 0), scaled to sum to 1, and ends the draft. If all stand, the
model has already said what follows: one token more is drawn from p.

A greedy request's p is all on one token, so it gets the tokens that it would have got anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine_stub.sampler import Sample, Sampler, SamplingRequest, report
from engine_stub.speculation import Draft


class RejectionSampler:
    """Samples where there are drafts.

    Args:
        sampler: Knows what each request samples from.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __call__(
        self, logits: Tensor, requests: list[SamplingRequest], drafts: list[Draft]
    ) -> list[list[Sample]]:
        """Sample one token at least, and one more at most than each draft has.

        Args:
            logits: ``[sum of 1 + len(draft), vocab]``, float32: for each sequence what follows its
                last token, and what follows each token of its draft.
            requests: One for each row of `logits`.
            drafts: One for each sequence.

        Returns:
            The samples of each sequence, in order.
        """
        probs = self._sampler.probs(logits, requests)
        kept: list[int] = []
        token_ids: list[int] = []
        nums: list[int] = []
        start = 0
        for draft in drafts:
            end = start + 1 + len(draft.token_ids)
            generator = requests[start].generator or self._sampler.generator
            accepted = accept(probs[start:end], draft, generator)
            kept += range(start, start + len(accepted))
            token_ids += accepted
            nums.append(len(accepted))
            start = end
        samples = iter(
            report(
                logits[kept].log_softmax(-1),
                torch.tensor(token_ids, device=logits.device),
                [requests[row].params.logprobs or 0 for row in kept],
            )
        )
        return [[next(samples) for _ in range(num)] for num in nums]


def accept(probs: Tensor, draft: Draft, generator: torch.Generator) -> list[int]:
    """The tokens of a draft that stand, and one that follows them.

    Args:
        probs: ``[1 + len(draft), vocab]``, what the tokens should be distributed by, each given
            the draft before it.
        generator: On the device of `probs`.
    """
    drawn = probs.new_zeros(len(draft.token_ids), probs.shape[-1])
    token_ids = torch.tensor(draft.token_ids, dtype=torch.int64, device=probs.device)[:, None]
    drawn = drawn.scatter_(1, token_ids, 1.0) if draft.probs is None else draft.probs
    chances = torch.rand(token_ids.shape, generator=generator, device=probs.device)
    stands = chances * drawn.gather(1, token_ids) < probs[:-1].gather(1, token_ids)
    num_accepted = int(stands[:, 0].long().cumprod(0).sum())
    rest = probs[num_accepted]
    if num_accepted < len(draft.token_ids):
        remainder = (rest - drawn[num_accepted]).clamp(min=0)
        # Rounding may leave nothing where both distributions are as good as one.
        rest = remainder if remainder.any() else rest
    noise = torch.empty_like(rest).exponential_(generator=generator)
    return [*draft.token_ids[:num_accepted], int((rest / noise).argmax())]
