"""Measures how much of a device's memory the KV pool may use: what the largest steps leave.

The largest steps are run once before the pool is allocated, on a pool of a single block that all
tables refer to. Their results do not matter, only the memory that they take.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from engine_stub.config import EngineConfig
from engine_stub.model_executor.attention import AttentionSegment, PagedAttention, PagedKVCache
from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.sampler import Sampler, SamplingMetadata
from engine_stub.platforms import platform_of
from engine_stub.worker.decode_graphs import DecodeGraphs
from engine_stub.worker.input_batch import segment_sizes
from seqtop.sequence import IntermediateTensors, SamplingParams, SequenceData

# The share of the memory left over that the pool gets. The rest is for other users of the device,
# and for what allocators leave unused.
_SHARE = 0.9


@torch.inference_mode()
def available_bytes(
    model: Decoder, cache: PagedKVCache, config: EngineConfig, max_model_len: int
) -> int:
    """Returns the bytes that the model's device can spare for the pool; 0 or less if none.

    Args:
        cache: A cache with the shape to run with, but of one block.
        max_model_len: The longest sequence, in tokens.
    """
    device = cache.pool.device
    platform = platform_of(device)
    if platform.kv_pool_bytes is not None:
        return platform.kv_pool_bytes
    taken = platform.peak_bytes(
        lambda: _run_largest_steps(model, cache, config, max_model_len), device
    )
    if not config.enforce_eager:
        taken += _graph_bytes(model, cache, config, max_model_len)
    return int((platform.free_bytes(device) - taken) * _SHARE)


def _run_largest_steps(
    model: Decoder, cache: PagedKVCache, config: EngineConfig, max_model_len: int
) -> None:
    """Runs the steps that take the most memory besides weights, pool and graphs."""
    device = cache.pool.device
    num_tokens = config.max_num_batched_tokens
    table = [0] * -(-max_model_len // cache.block_size)
    num_decodes = segment_sizes([table] * config.max_num_seqs, cache)[0]
    # With drafts, there may be a sample after each token.
    num_samples = num_tokens if config.speculative else config.max_num_seqs
    # A prompt, the end of the longest prompt, and as many decodes as are computed in one call.
    for tables, num_queries in (
        ([], min(num_tokens, max_model_len)),
        ([table], num_tokens),
        ([table] * num_decodes, 1),
    ):
        num_seqs = len(tables) or 1
        size = num_seqs * num_queries
        received = None
        if not model.stage.is_first:
            states = cache.pool.new_zeros(size, model.config.hidden_size)
            received = IntermediateTensors({"hidden_states": states})
        tokens = torch.zeros(size, dtype=torch.int64, device=device)
        positions = torch.arange(max_model_len - num_queries, max_model_len, device=device).clamp(0)
        queries = positions.expand(num_seqs, num_queries)
        context = cache.contexts(tables, queries, [num_seqs])[0] if tables else None
        attend = PagedAttention(cache, tokens, [AttentionSegment(0, size, num_seqs, context)])
        hidden = model(tokens, queries.flatten(), attend, received)
        if model.stage.is_last:
            _sample(model, hidden[:1].expand(num_samples, -1))


def _sample(model: Decoder, hidden: torch.Tensor) -> None:
    """Samples after each of ``hidden [N, hidden_size]``, with every option that takes memory."""
    params = SamplingParams(top_k=2, top_p=0.9, min_p=0.1, repetition_penalty=1.1, logprobs=1)
    request = SamplingMetadata(params, SequenceData.from_seqs([0]), None)
    logits = model.compute_logits(hidden)
    Sampler(torch.Generator(logits.device))(logits, [request] * len(logits))


def _graph_bytes(
    model: Decoder, cache: PagedKVCache, config: EngineConfig, max_model_len: int
) -> int:
    """Returns the most memory that graphs of decodes take.

    The largest graph shows how much the memory takes that all graphs share; the second one shows
    how much each further graph adds.
    """
    device = cache.pool.device
    platform = platform_of(device)
    free = [platform.free_bytes(device)]
    num_draft_tokens = config.num_speculative_tokens if config.speculative else 0
    graphs = DecodeGraphs(model, cache, config.max_num_seqs, max_model_len, num_draft_tokens)
    for shape in graphs.shapes[:-3:-1]:
        graphs.fitting(*shape)
        free.append(platform.free_bytes(device))
    taken = [max(before - after, 0) for before, after in pairwise(free)]
    return sum(taken[:1]) + sum(taken[1:]) * (len(graphs.shapes) - 1)
