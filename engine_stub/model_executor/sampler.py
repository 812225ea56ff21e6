"""Samples tokens from logits, for a batch of requests with different parameters.

In this order: token bias and bans, penalties, temperature, top-k, top-p, min-p, draw. Reported log
probabilities and ranks are those of the model's own distribution, before any of these steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec
import torch
from torch import Tensor

from engine_stub.platforms import to_device, to_host
from seqtop.sequence import Logprob, SamplingParams, SamplingType, SequenceData


@dataclass(slots=True)
class RowSampling:
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


class SampledToken(msgspec.Struct, frozen=True):
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

    def __call__(self, logits: Tensor, requests: list[RowSampling]) -> list[SampledToken]:
        """Samples a token for each row of ``logits [N, vocab]``, float32, which stay unchanged."""
        logprobs = logits.log_softmax(-1)
        token_ids = self._choose(logits, requests)
        counts = [request.params.logprobs or 0 for request in requests]
        are_likeliest = all(row.is_greedy and not row.edits_logits for row in requests)
        return gather_logprobs(logprobs, token_ids, counts, are_likeliest=are_likeliest)

    def probs(self, logits: Tensor, requests: list[RowSampling]) -> Tensor:
        """Returns each row's distribution, ``[N, vocab]``; one token for a greedy request."""
        logits = _edited(logits, requests)
        probs = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        if drawn := _drawn(requests):
            rows = to_device(drawn, logits.device)
            own = self._probs(logits.index_select(0, rows), [requests[row].params for row in drawn])
            probs.index_copy_(0, rows, own)
        return probs

    def _choose(self, logits: Tensor, requests: list[RowSampling]) -> Tensor:
        """Returns the token of each row, ``[N]``."""
        logits = _edited(logits, requests)
        # The same as `argmax`, which takes more than twice as long for many rows.
        token_ids = logits.max(-1).indices
        if drawn := _drawn(requests):
            rows = to_device(drawn, logits.device)
            own = self._draw(logits.index_select(0, rows), [requests[row] for row in drawn])
            token_ids.index_copy_(0, rows, own)
        return token_ids

    def _draw(self, logits: Tensor, requests: list[RowSampling]) -> Tensor:
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
        logits = logits / _column([own.temperature for own in params], logits)
        if any(own.top_k > 0 or own.top_p < 1 for own in params):
            vocab = logits.shape[-1]
            top_k = [own.top_k if 0 < own.top_k < vocab else vocab for own in params]
            # If every row has a top-k, nothing beyond the largest one has to be sorted.
            most = max(top_k)
            top = logits.topk(most) if most < vocab else logits.sort(descending=True)
            top_p = _column([own.top_p for own in params], logits)
            kept = _keep_top(top.values, _column(top_k, logits, torch.int64), top_p)
            logits = torch.full_like(logits, -torch.inf).scatter_(-1, top.indices, kept)
        probs = logits.softmax(-1)
        if any(own.min_p > 0 for own in params):
            floor = probs.amax(-1, keepdim=True) * _column([own.min_p for own in params], logits)
            probs = probs.masked_fill(probs < floor, 0.0)
            probs /= probs.sum(-1, keepdim=True)
        return probs


def likeliest_continuations(
    logits: Tensor, cumulative_logprobs: list[float], count: int, *, temperature: float
) -> list[tuple[int, SampledToken]]:
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
    totals = logprobs + _column(cumulative_logprobs, logits)
    best = totals.flatten().topk(min(count, totals.numel())).indices
    beams, token_ids = best // logits.shape[-1], best % logits.shape[-1]
    chosen = logprobs[beams, token_ids]
    ranks = (logprobs[beams] > chosen[:, None]).sum(-1) + 1
    return [
        (beam, SampledToken(token_id, {token_id: Logprob(logprob, rank)}))
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
    reported = gather_logprobs(logits.log_softmax(-1), token_ids, [count] * len(token_ids))
    return [token.logprobs for token in reported]


def _keep_top(ordered: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Returns ``ordered [N, tokens]``, logits in descending order, with minus infinity for others.

    The `top_k` best remain, and of these the likeliest with a mass of `top_p`. The token that
    crosses the mass stays, so that at least one always does.
    """
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered = ordered.masked_fill(ranks >= top_k, -torch.inf)
    probs = ordered.softmax(-1)
    mass_before = probs.cumsum(-1) - probs
    # By rounding, the mass before the last tokens may reach 1, which must not exclude them.
    return ordered.masked_fill((mass_before >= top_p) & (top_p < 1), -torch.inf)


def depends_on_output(params: SamplingParams) -> bool:
    """Tells whether the output so far changes the logits, as penalties and `min_tokens` do."""
    return params.min_tokens > 0 or _penalizes(params)


def _penalizes(params: SamplingParams) -> bool:
    return bool(
        params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
    )


def _drawn(requests: list[RowSampling]) -> list[int]:
    """Returns the rows that are not greedy."""
    return [row for row, request in enumerate(requests) if not request.is_greedy]


def _edited(logits: Tensor, requests: list[RowSampling]) -> Tensor:
    """Returns ``logits [N, vocab]`` after biases, bans and penalties; a copy if there are any."""
    if not any(request.edits_logits for request in requests):
        return logits
    logits = logits.clone(memory_format=torch.contiguous_format)
    _apply_biases_and_bans(logits, requests)
    _apply_penalties(logits, requests)
    return logits


def _edits_logits(params: SamplingParams) -> bool:
    return bool(
        params.logit_bias or params.allowed_token_ids is not None or depends_on_output(params)
    )


def _apply_biases_and_bans(logits: Tensor, requests: list[RowSampling]) -> None:
    """Adds biases to ``logits [N, vocab]``, and bans all tokens but the allowed ones, in place."""
    vocab_size, device = logits.shape[-1], logits.device
    flat = logits.view(-1)
    biases: dict[int, float] = {}
    allowed: list[int] = []
    restricted: list[int] = []
    banned: list[int] = []
    for row, (params, data) in enumerate((request.params, request.data) for request in requests):
        first = row * vocab_size
        for token_id, bias in (params.logit_bias or {}).items():
            biases[first + token_id] = bias
        if params.allowed_token_ids is not None:
            restricted.append(row)
            allowed += [first + token_id for token_id in params.allowed_token_ids]
        if data.get_output_len() < params.min_tokens:
            banned += [
                first + token_id for token_id in params.all_stop_token_ids if token_id < vocab_size
            ]
    # A number assigned through an index tensor would be copied to the device by itself, and the
    # host would wait for that; `index_fill_` passes it along.
    if biases:
        values = to_device([*biases.values()], device, torch.float32)
        flat.index_add_(0, to_device([*biases], device), values)
    if restricted:
        indices = to_device(allowed, device)
        kept = flat.index_select(0, indices)
        logits.index_fill_(0, to_device(restricted, device), -torch.inf)
        flat.index_copy_(0, indices, kept)
    if banned:
        flat.index_fill_(0, to_device(banned, device), -torch.inf)


def _apply_penalties(logits: Tensor, requests: list[RowSampling]) -> None:
    """Lowers the logits of tokens that occur, in place; all rows at once."""
    penalized = {row: request for row, request in enumerate(requests) if _penalizes(request.params)}
    if not penalized:
        return
    params = [request.params for request in penalized.values()]
    data = [request.data for request in penalized.values()]
    rows = to_device([*penalized], logits.device)
    scores = logits.index_select(0, rows)
    repetition = _column([own.repetition_penalty for own in params], logits)
    lower = torch.where(scores > 0, scores / repetition, scores * repetition)
    is_seen = _token_counts([seq_data.get_token_ids() for seq_data in data], logits) > 0
    scores = torch.where(is_seen, lower, scores)
    counts = _token_counts([seq_data.output_token_ids for seq_data in data], logits)
    per_token = _column([own.frequency_penalty for own in params], logits)
    once = _column([own.presence_penalty for own in params], logits)
    logits.index_copy_(0, rows, scores - (per_token * counts + once * (counts > 0)))


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns ``[len(values), 1]`` on the device of `like`."""
    return to_device(values, like.device, dtype)[:, None]


def _token_counts(token_ids: list[Sequence[int]], logits: Tensor) -> Tensor:
    """Returns how often each token occurs in each list, ``[len(token_ids), vocab]`` float32."""
    vocab_size, device = logits.shape[-1], logits.device
    rows = to_device(range(len(token_ids)), device)
    lengths = [len(ids) for ids in token_ids]
    # Without the size of the output, the host would wait for the sum of the lengths.
    rows = rows.repeat_interleave(to_device(lengths, device), output_size=sum(lengths))
    indices = rows * vocab_size + to_device([*chain(*token_ids)], device)
    counts = torch.zeros(len(token_ids), vocab_size, device=device)
    counts.view(-1).index_add_(0, indices, torch.ones_like(indices, dtype=counts.dtype))
    return counts


def gather_logprobs(
    logprobs: Tensor, token_ids: Tensor, counts: list[int], *, are_likeliest: bool = False
) -> list[SampledToken]:
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
        SampledToken(token_id, {token_id: Logprob(logprob, rank)})
        for token_id, logprob, rank in zip(*own, strict=True)
    ]
    if most:
        for sample, wanted, top, indices in zip(samples, counts, *values, strict=True):
            for rank, (token_id, logprob) in enumerate(
                zip(indices[:wanted], top[:wanted], strict=True), start=1
            ):
                sample.logprobs.setdefault(token_id, Logprob(logprob, rank))
    return samples
