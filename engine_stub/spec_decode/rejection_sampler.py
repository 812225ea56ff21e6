"""Rejection sampling of drafts: outputs are distributed as they would be without drafts.

Modified rejection sampling (Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", 2023; Chen et al., "Accelerating Large Language Model Decoding with Speculative
Sampling", 2023): with p the distribution that the request samples from and q the one that the
draft was drawn from, a token x is accepted with probability min(1, p(x) / q(x)). The first rejected
token is replaced by a draw from max(p - q, 0), scaled to sum to 1, and ends the draft. If all are
accepted, one token more is drawn from p, as the model has already computed what follows.

For a greedy request p is 1 on one token, so that its tokens are the same as without a draft.
"""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor

from engine_stub.model_executor.sampler import RowSampling, SampledToken, Sampler, gather_logprobs
from engine_stub.platforms import to_device, to_host
from engine_stub.spec_decode.speculation import Draft


class RejectionSampler:
    """Samples for sequences with drafts.

    Args:
        sampler: The sampler that computes the distribution of each request.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __call__(
        self, logits: Tensor, requests: list[RowSampling], drafts: list[Draft]
    ) -> list[list[SampledToken]]:
        """Samples from one token to one more than the draft has, for each sequence.

        Args:
            logits: ``[sum of 1 + len(draft), vocab]``, float32: for each sequence the prediction
                after its last token, and after each token of its draft.
            requests: The parameters of each row of `logits`.
            drafts: The draft of each sequence.

        Returns:
            The samples of each sequence, in order.
        """
        probs = self._sampler.probs(logits, requests)
        sizes = [1 + len(draft.token_ids) for draft in drafts]
        accepted: list[Tensor] = []
        token_ids: list[Tensor] = []
        first = 0
        for draft, own in zip(drafts, torch.split(probs, sizes), strict=True):
            generator = requests[first].generator or self._sampler.generator
            num_accepted, next_id = accept(own, draft, generator)
            drafted = to_device([*draft.token_ids, 0], logits.device)
            positions = torch.arange(len(own), device=logits.device)
            token_ids.append(torch.where(positions < num_accepted, drafted, next_id))
            accepted.append(num_accepted)
            first += len(own)
        # Rejected tokens are reported too: the host learns which ones only from the device.
        counts = [request.params.logprobs or 0 for request in requests]
        samples = iter(gather_logprobs(logits.log_softmax(-1), torch.cat(token_ids), counts))
        (nums_accepted,) = to_host(torch.stack(accepted))
        return [
            [*islice(samples, size)][: num_accepted + 1]
            for size, num_accepted in zip(sizes, nums_accepted, strict=True)
        ]


def accept(probs: Tensor, draft: Draft, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the number of accepted tokens and the token after them, as tensors of no dimension.

    Args:
        probs: ``[1 + len(draft), vocab]``, the distribution of each token, given the draft before.
        draft: The draft to verify.
        generator: Random numbers on the device of `probs`.
    """
    token_ids = to_device(draft.token_ids, probs.device)[:, None]
    # No token is proposed for the last position, so that its whole distribution remains.
    drawn = torch.zeros_like(probs)
    if draft.probs is None:
        drawn[:-1].scatter_(1, token_ids, 1.0)
    else:
        drawn[:-1] = draft.probs
    chances = torch.rand(token_ids.shape, generator=generator, device=probs.device)
    is_accepted = chances * drawn[:-1].gather(1, token_ids) < probs[:-1].gather(1, token_ids)
    num_accepted = is_accepted[:, 0].long().cumprod(0).sum()
    target = probs.index_select(0, num_accepted[None])
    remainder = (target - drawn.index_select(0, num_accepted[None])).clamp(min=0)
    # By rounding, nothing may remain where both distributions are nearly equal.
    target = torch.where(remainder.any(), remainder, target)[0]
    noise = torch.empty_like(target).exponential_(generator=generator)
    return num_accepted, (target / noise).argmax()
