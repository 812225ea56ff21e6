"""The steps that take the most memory, which are run once to measure what they leave for the pool.

They run before the pool is allocated, on one of a single block that all tables refer to. Their
results do not matter.
"""

from __future__ import annotations

import torch

from engine_stub.config import EngineConfig
from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.sampler import RowSampling, Sampler
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.input_batch import prepare_batch
from seqtop.sequence import (
    IntermediateTensors,
    SamplingParams,
    SequenceData,
    SequenceGroupMetadata,
)


@torch.inference_mode()
def run_largest_steps(
    model: Decoder, cache: PagedKVCache, config: EngineConfig, max_model_len: int
) -> None:
    """Runs the steps that take the most memory besides weights, pool and graphs.

    Args:
        cache: A cache with the shape to run with, but of one block.
        max_model_len: The longest sequence, in tokens.
    """
    # Prompts from their beginning, and the ends of prompts.
    for end in (min(config.max_num_batched_tokens, max_model_len), max_model_len):
        groups = _prompts(config.max_num_batched_tokens, end, cache.block_size)
        tables = DeviceBlockTables(len(groups), -(-end // cache.block_size), cache.pool.device)
        batch = prepare_batch(groups, cache, tables, {})
        received = None
        if not model.stage.is_first:
            size = len(batch.input_ids), model.config.hidden_size
            received = IntermediateTensors({"hidden_states": cache.pool.new_zeros(size)})
        hidden = model(batch.input_ids, batch.positions, batch.attend, received)
        if model.stage.is_last:
            num_samples = config.max_num_seqs * (1 + config.num_draft_tokens)
            _sample(model, hidden[:1].expand(num_samples, -1))


def _prompts(num_tokens: int, end: int, block_size: int) -> list[SequenceGroupMetadata]:
    """Returns the groups of a step of `num_tokens`, in prompts that are computed up to `end`."""
    groups: list[SequenceGroupMetadata] = []
    while num_tokens:
        chunk = min(num_tokens, end)
        data = SequenceData.from_seqs([0] * end)
        data.update_num_computed_tokens(end - chunk)
        groups.append(
            SequenceGroupMetadata(
                request_id=str(len(groups)),
                is_prompt=True,
                seq_data={len(groups): data},
                sampling_params=None,
                block_tables={len(groups): [0] * -(-end // block_size)},
                do_sample=False,
                token_chunk_size=chunk,
            )
        )
        num_tokens -= chunk
    return groups


def _sample(model: Decoder, hidden: torch.Tensor) -> None:
    """Samples after each of ``hidden [N, hidden_size]``, with every option that takes memory."""
    params = SamplingParams(
        top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=1.0, logprobs=1
    )
    request = RowSampling(params, SequenceData.from_seqs([0]), None)
    logits = model.compute_logits(hidden)
    Sampler(torch.Generator(logits.device))(logits, [request] * len(logits))
