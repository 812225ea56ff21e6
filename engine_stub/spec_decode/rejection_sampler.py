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

from itertools import islice

import torch
from torch import Tensor

from engine_stub.model_executor.sampler import Sampler, SamplerOutput, SamplingMetadata, report
from engine_stub.platforms.cuda import to_device, to_host
from engine_stub.spec_decode.speculation import Draft


class RejectionSampler:
    """Samples where there are drafts.

    Args:
        sampler: Knows what each request samples from.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __call__(
        self, logits: Tensor, requests: list[SamplingMetadata], drafts: list[Draft]
    ) -> list[list[SamplerOutput]]:
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
        sizes = [1 + len(draft.token_ids) for draft in drafts]
        kept: list[Tensor] = []
        token_ids: list[Tensor] = []
        first = 0
        for draft, own in zip(drafts, torch.split(probs, sizes), strict=True):
            generator = requests[first].generator or self._sampler.generator
            num_accepted, next_id = accept(own, draft, generator)
            guessed = to_device([*draft.token_ids, 0], logits.device)
            places = torch.arange(len(own), device=logits.device)
            token_ids.append(torch.where(places < num_accepted, guessed, next_id))
            kept.append(num_accepted)
            first += len(own)
        # Also of tokens that do not stand: which ones do is not known before the device is done.
        counts = [request.params.logprobs or 0 for request in requests]
        samples = iter(report(logits.log_softmax(-1), torch.cat(token_ids), counts))
        (nums_accepted,) = to_host(torch.stack(kept))
        return [
            [*islice(samples, size)][: num_accepted + 1]
            for size, num_accepted in zip(sizes, nums_accepted, strict=True)
        ]


def accept(probs: Tensor, draft: Draft, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """How many tokens of a draft stand, and the one that follows them, each of no dimension.

    Args:
        probs: ``[1 + len(draft), vocab]``, what the tokens should be distributed by, each given
            the draft before it.
        generator: On the device of `probs`.
    """
    token_ids = to_device(draft.token_ids, probs.device)[:, None]
    # Nothing is proposed for the last place, so that all of its distribution remains.
    drawn = torch.zeros_like(probs)
    if draft.probs is None:
        drawn[:-1].scatter_(1, token_ids, 1.0)
    else:
        drawn[:-1] = draft.probs
    chances = torch.rand(token_ids.shape, generator=generator, device=probs.device)
    stands = chances * drawn[:-1].gather(1, token_ids) < probs[:-1].gather(1, token_ids)
    num_accepted = stands[:, 0].long().cumprod(0).sum()
    rest = probs.index_select(0, num_accepted[None])
    remainder = (rest - drawn.index_select(0, num_accepted[None])).clamp(min=0)
    # Rounding may leave nothing where both distributions are as good as one.
    rest = torch.where(remainder.any(), remainder, rest)[0]
    noise = torch.empty_like(rest).exponential_(generator=generator)
    return num_accepted, (rest / noise).argmax()
