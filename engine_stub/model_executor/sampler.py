"""Samples tokens from logits, for a batch of requests with different parameters.

In this order: token bias and bans, penalties, temperature, top-k, top-p, min-p, draw. Reported log
probabilities and ranks are those of the model's own distribution, before any of these steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from engine_stub.platforms import to_device, to_host
from seqtop.sequence import Logprob, SamplingParams, SamplingType, SequenceData


@dataclass(slots=True)
class SamplingMetadata:
    """The parameters of one row of logits.

    Attributes:
        data: The tokens of the sequence.
        generator: The request's own random numbers; None without a seed.
        is_greedy: Whether the likeliest token is taken.
        edits_logits: Whether a bias, ban or penalty changes the logits first.
    """

    params: SamplingParams
    data: SequenceData
    generator: torch.Generator | None
    is_greedy: bool = field(init=False)
    edits_logits: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_greedy = self.params.sampling_type is SamplingType.GREEDY
        self.edits_logits = _edits_logits(self.params)


class SamplerOutput(msgspec.Struct, frozen=True):
    """A sampled token with the log probabilities to report, its own first."""

    token_id: int
    logprobs: dict[int, Logprob]


class Sampler:
    """Samples one token per row.

    Args:
        generator: The random numbers of requests without a seed, on the device of the logits.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, logits: Tensor, requests: list[SamplingMetadata]) -> list[SamplerOutput]:
        """Samples a token for each row of ``logits [N, vocab]``, float32, which stay unchanged."""
        logprobs = logits.log_softmax(-1)
        token_ids = self._choose(logits, requests)
        counts = [request.params.logprobs or 0 for request in requests]
        are_likeliest = all(each.is_greedy and not each.edits_logits for each in requests)
        return report(logprobs, token_ids, counts, are_likeliest=are_likeliest)

    def probs(self, logits: Tensor, requests: list[SamplingMetadata]) -> Tensor:
        """Returns each row's distribution, ``[N, vocab]``; one token for a greedy request."""
        logits = _edited(logits, requests)
        probs = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        if drawn := _drawn(requests):
            rows = to_device(drawn, logits.device)
            probs[rows] = self._probs(logits[rows], [requests[row].params for row in drawn])
        return probs

    def _choose(self, logits: Tensor, requests: list[SamplingMetadata]) -> Tensor:
        """Returns the token of each row, ``[N]``."""
        logits = _edited(logits, requests)
        # The same as `argmax`, which takes more than twice as long for many rows.
        token_ids = logits.max(-1).indices
        if drawn := _drawn(requests):
            rows = to_device(drawn, logits.device)
            token_ids[rows] = self._draw(logits[rows], [requests[row] for row in drawn])
        return token_ids

    def _draw(self, logits: Tensor, requests: list[SamplingMetadata]) -> Tensor:
        """Draws a token for each row by temperature and truncation."""
        probs = self._probs(logits, [request.params for request in requests])
        # The smallest of exponential variates with rates p is the i-th with probability p_i.
        noise = torch.empty_like(probs).exponential_(generator=self.generator)
        for row, request in enumerate(requests):
            if request.generator is not None:
                noise[row].exponential_(generator=request.generator)
        return (probs / noise).argmax(-1)

    def _probs(self, logits: Tensor, params: list[SamplingParams]) -> Tensor:
        """Returns each row's distribution after temperature and truncation."""

        def column(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return to_device(values, logits.device, dtype)[:, None]

        logits = logits / column([each.temperature for each in params])
        if any(each.top_k > 0 or each.top_p < 1 for each in params):
            vocab = logits.shape[-1]
            top_k = [each.top_k if 0 < each.top_k < vocab else vocab for each in params]
            logits = _keep_top(
                logits, column(top_k, torch.int64), column([each.top_p for each in params])
            )
        probs = logits.softmax(-1)
        if any(each.min_p > 0 for each in params):
            floor = probs.amax(-1, keepdim=True) * column([each.min_p for each in params])
            probs = probs.masked_fill(probs < floor, 0.0)
            probs /= probs.sum(-1, keepdim=True)
        return probs


def likeliest_continuations(
    logits: Tensor, cumulative_logprobs: list[float], count: int, *, temperature: float
) -> list[tuple[int, SamplerOutput]]:
    """Returns the best next tokens of several beams, by the log probability of the whole output.

    Args:
        logits: ``[beams, vocab]``, float32, left unchanged.
        cumulative_logprobs: The log probability of each beam so far.
        count: The number of continuations to return, likeliest first.
        temperature: Divides the logits; 0 means 1.

    Returns:
        For each continuation the index of its beam, and its token.
    """
    logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
    totals = logprobs + to_device(cumulative_logprobs, logits.device, torch.float32)[:, None]
    best = totals.flatten().topk(min(count, totals.numel())).indices
    beams, token_ids = best // logits.shape[-1], best % logits.shape[-1]
    chosen = logprobs[beams, token_ids]
    ranks = (logprobs[beams] > chosen[:, None]).sum(-1) + 1
    return [
        (beam, SamplerOutput(token_id, {token_id: Logprob(logprob, rank)}))
        for beam, token_id, logprob, rank in zip(
            *to_host(beams, token_ids, chosen, ranks), strict=True
        )
    ]


def prompt_logprobs(logits: Tensor, token_ids: Tensor, count: int) -> list[dict[int, Logprob]]:
    """Returns the log probabilities of given tokens, and of the likeliest at each position.

    Args:
        logits: ``[N, vocab]``, float32, the prediction of each token.
        token_ids: The tokens, ``[N]``.
        count: The number of likeliest tokens to report beside each.
    """
    reported = report(logits.log_softmax(-1), token_ids, [count] * len(token_ids))
    return [each.logprobs for each in reported]


def _keep_top(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Sets all but the `top_k` best and the `top_p` likeliest mass to minus infinity.

    The token that crosses the mass stays, so that at least one always does.
    """
    ordered, indices = logits.sort(-1, descending=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    ordered = ordered.masked_fill(ranks >= top_k, -torch.inf)
    probs = ordered.softmax(-1)
    mass_before = probs.cumsum(-1) - probs
    # By rounding, the mass before the last tokens may reach 1, which must not exclude them.
    ordered = ordered.masked_fill((mass_before >= top_p) & (top_p < 1), -torch.inf)
    return torch.empty_like(logits).scatter_(-1, indices, ordered)


def depends_on_output(params: SamplingParams) -> bool:
    """Tells whether the output so far changes the logits, as penalties and `min_tokens` do."""
    return bool(
        params.min_tokens
        or params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
    )


def _drawn(requests: list[SamplingMetadata]) -> list[int]:
    """Returns the rows that are not greedy."""
    return [row for row, request in enumerate(requests) if not request.is_greedy]


def _edited(logits: Tensor, requests: list[SamplingMetadata]) -> Tensor:
    """Returns ``logits [N, vocab]`` after biases, bans and penalties; a copy if there are any."""
    edited = [row for row, request in enumerate(requests) if request.edits_logits]
    if edited:
        logits = logits.clone()
        for row in edited:
            _edit_logits(logits[row], requests[row])
    return logits


def _edits_logits(params: SamplingParams) -> bool:
    return bool(
        params.logit_bias or params.allowed_token_ids is not None or depends_on_output(params)
    )


def _edit_logits(row: Tensor, request: SamplingMetadata) -> None:
    """Applies one request's bias, bans and penalties to its logits ``[vocab]``, in place."""
    params, data = request.params, request.data

    def indices(token_ids: list[int]) -> Tensor:
        return to_device(token_ids, row.device)

    if params.logit_bias:
        bias = to_device(list(params.logit_bias.values()), row.device, torch.float32)
        row.index_add_(0, indices(list(params.logit_bias)), bias)
    if params.allowed_token_ids is not None:
        banned = torch.ones_like(row, dtype=torch.bool)
        banned[indices(params.allowed_token_ids)] = False
        row.masked_fill_(banned, -torch.inf)
    if data.get_output_len() < params.min_tokens:
        row[indices(sorted(params.all_stop_token_ids))] = -torch.inf
    if params.repetition_penalty != 1:
        seen = indices(list(set(data.get_token_ids())))
        scores = row[seen]
        penalty = params.repetition_penalty
        row[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)
    if params.presence_penalty or params.frequency_penalty:
        # `bincount` would make the host wait for the largest index.
        output = indices(list(data.output_token_ids))
        counts = torch.zeros_like(row).index_add_(
            0, output, torch.ones_like(output, dtype=row.dtype)
        )
        row -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)


def report(
    logprobs: Tensor, token_ids: Tensor, counts: list[int], *, are_likeliest: bool = False
) -> list[SamplerOutput]:
    """Returns tokens with their log probabilities and those of the likeliest tokens.

    Args:
        logprobs: ``[N, vocab]``.
        token_ids: The sampled tokens, ``[N]``.
        counts: For each row, the number of likeliest tokens to report.
        are_likeliest: Whether the sampled tokens are certain to have rank 1.
    """
    chosen = logprobs.gather(-1, token_ids[:, None])
    columns = [token_ids, chosen[:, 0]]
    if not are_likeliest:
        columns.append((logprobs > chosen).sum(-1) + 1)
    most = max(counts)
    if most:
        columns += logprobs.topk(min(most, logprobs.shape[-1]), dim=-1)
    values = iter(to_host(*columns))
    own = next(values), next(values), [1] * len(counts) if are_likeliest else next(values)
    samples = [
        SamplerOutput(token_id, {token_id: Logprob(logprob, rank)})
        for token_id, logprob, rank in zip(*own, strict=True)
    ]
    if most:
        for sample, wanted, top, indices in zip(samples, counts, *values, strict=True):
            for rank, (token_id, logprob) in enumerate(
                zip(indices[:wanted], top[:wanted], strict=True), start=1
            ):
                sample.logprobs.setdefault(token_id, Logprob(logprob, rank))
    return samples
