"""How much of a CUDA device's memory the KV pool may have: what the largest steps leave.

They are run once before the pool is made, over one of a single block, which all tables name: what
is computed does not matter, only how much memory it takes.
"""

from __future__ import annotations

import gc
from itertools import pairwise

import torch

from engine_stub.config import EngineConfig
from engine_stub.model_executor.attention import AttentionSegment, PagedAttention, PagedKVCache
from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.sampler import Sampler, SamplingMetadata
from engine_stub.platforms.cuda_graphs import DecodeGraphs
from engine_stub.worker.input_batch import segment_sizes
from seqtop.sequence import IntermediateTensors, SamplingParams, SequenceData

# Of what is left; the rest is for what else runs on the device, and for what allocators leave
# unused.
_SHARE = 0.9


@torch.inference_mode()
def available_bytes(
    model: Decoder, cache: PagedKVCache, config: EngineConfig, max_model_len: int
) -> int:
    """What the model's device can spare for the pool; 0 or less if there is not even room to run.

    Args:
        cache: As the one to run with, but of one block.
        max_model_len: The longest sequence, in tokens.
    """
    taken = _activation_bytes(model, cache, config, max_model_len)
    if not config.enforce_eager:
        taken += _graph_bytes(model, cache, config, max_model_len)
    return int((_free_bytes(cache.pool.device) - taken) * _SHARE)


def _activation_bytes(
    model: Decoder, cache: PagedKVCache, config: EngineConfig, max_model_len: int
) -> int:
    """The most memory that a step takes besides weights and pool, but for graphs."""
    device = cache.pool.device
    num_tokens = config.max_num_batched_tokens
    table = [0] * -(-max_model_len // cache.block_size)
    num_decodes = segment_sizes([table] * config.max_num_seqs, cache)[0]
    # With drafts, there may be a sample after each token.
    num_samples = num_tokens if config.speculative else config.max_num_seqs
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    # A prompt, the end of one as long as can be, and as many decodes as are computed in one call.
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
    return torch.cuda.max_memory_allocated(device) - before


def _sample(model: Decoder, hidden: torch.Tensor) -> None:
    """Sample after each of ``hidden [N, hidden_size]``, with all that takes memory."""
    params = SamplingParams(top_k=2, top_p=0.9, min_p=0.1, repetition_penalty=1.1, logprobs=1)
    request = SamplingMetadata(params, SequenceData.from_seqs([0]), None)
    logits = model.compute_logits(hidden)
    Sampler(torch.Generator(logits.device))(logits, [request] * len(logits))


def _graph_bytes(
    model: Decoder, cache: PagedKVCache, config: EngineConfig, max_model_len: int
) -> int:
    """The most memory that graphs of decodes take.

    The graph of most sequences says what it takes to compute a step, which all graphs share;
    another one, how much each of the others adds.
    """
    free = [_free_bytes(cache.pool.device)]
    num_draft_tokens = config.num_speculative_tokens if config.speculative else 0
    graphs = DecodeGraphs(model, cache, config.max_num_seqs, max_model_len, num_draft_tokens)
    for shape in graphs.shapes[:-3:-1]:
        graphs.fitting(*shape)
        free.append(_free_bytes(cache.pool.device))
    taken = [max(before - after, 0) for before, after in pairwise(free)]
    return sum(taken[:1]) + sum(taken[1:]) * (len(graphs.shapes) - 1)


def _free_bytes(device: torch.device) -> int:
    """Of the device, with nothing held back by torch."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
