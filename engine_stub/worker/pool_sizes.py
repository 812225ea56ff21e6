"""The sizes of the KV pools, and of the longest sequence, which has to fit into one."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from engine_stub.config import EngineConfig
from engine_stub.model_executor.model_config import ModelConfig

# The most host memory to swap to, if `num_cpu_blocks` is not set. For CUDA it is pinned, and so
# unavailable to all other processes; torch may take up to twice as much.
HOST_POOL_BYTES = 4 * 2**30


class _Worker(Protocol):
    def determine_num_available_blocks(self) -> int: ...


def with_pool_sizes(
    config: EngineConfig, model_config: ModelConfig, worker: _Worker
) -> EngineConfig:
    """Returns `config` with `num_gpu_blocks`, `num_cpu_blocks` and `max_model_len` filled in.

    Raises:
        ValueError: `max_model_len` is more than the model allows, or the device has no room.
    """
    model_limit = model_config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > model_limit:
        raise ValueError(
            f"max_model_len={config.max_model_len} is more than the {model_limit} positions "
            "of the model"
        )
    longest = config.max_model_len or model_limit
    if config.max_model_len is None and not config.enable_chunked_prefill:
        longest = min(longest, config.max_num_batched_tokens)
    num_blocks = config.num_gpu_blocks
    if num_blocks is None:
        from engine_stub.platforms import platform_of  # imports torch, which is slow

        num_blocks = worker.determine_num_available_blocks()
        if not platform_of(config.device).has_own_memory:
            # Other processes can use what the sequences do not need; else it is prefix cache.
            most_useful = config.max_num_seqs * -(-longest // config.block_size)
            num_blocks = min(num_blocks, most_useful)
    num_cpu_blocks = config.num_cpu_blocks
    if num_cpu_blocks is None:
        num_cpu_blocks = 0
        if config.preemption_mode == "swap":
            per_block = bytes_per_block(config, model_config, model_config.num_hidden_layers)
            num_cpu_blocks = min(num_blocks, HOST_POOL_BYTES // per_block)
    return dataclasses.replace(
        config,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=num_cpu_blocks,
        max_model_len=min(longest, num_blocks * config.block_size),
    )


def bytes_per_block(config: EngineConfig, model_config: ModelConfig, num_layers: int) -> int:
    """Returns the bytes of one KV block over `num_layers` layers."""
    import torch  # slow

    from engine_stub.model_executor.kv_cache import PagedKVCache

    return PagedKVCache.bytes_per_block(
        num_layers,
        model_config.num_key_value_heads,
        config.block_size,
        model_config.head_dim,
        getattr(torch, config.dtype),
    )
