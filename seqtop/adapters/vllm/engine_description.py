"""The description of an engine, read from its scheduler."""

from __future__ import annotations

import os
import time
from typing import Any, Final, NamedTuple

from seqtop.adapters.vllm.observations import EngineStarted
from seqtop.adapters.vllm.settings import AdapterSettings

_APPEND_ONLY: Final = ("FullAttentionSpec", "MLAAttentionSpec", "TQFullAttentionSpec")
"""Kinds of KV cache whose block tables only grow."""


class Layout(NamedTuple):
    """The way to read the block tables of an engine."""

    main_group: int = 0
    """The index of the KV-cache group whose table comes first."""
    whole_tables: bool = False
    """True if blocks within a table can be freed, so that whole tables have to be sent."""


def describe(scheduler: Any, settings: AdapterSettings) -> tuple[EngineStarted, Layout]:
    """Returns the description of the engine of a V1 scheduler, and the layout of its tables."""
    import vllm

    config = scheduler.vllm_config
    model, cache, limits = config.model_config, config.cache_config, config.scheduler_config
    parallel = config.parallel_config
    specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
    kinds = [type(spec).__name__ for spec in specs]
    main = next((index for index, kind in enumerate(kinds) if kind in _APPEND_ONLY), 0)
    # Ranks that share a sequence hold every n-th token of it in their blocks.
    split = getattr(parallel, "decode_context_parallel_size", 1)
    block_size = specs[main].block_size * split if specs else cache.block_size
    name = model.served_model_name or model.model
    name = name[0] if isinstance(name, list) else name
    rank = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
    lora = getattr(config, "lora_config", None)
    started = EngineStarted(
        vllm_version=vllm.__version__,
        engine_id=settings.engine_id or (f"{name} dp{rank}" if rank else name),
        model=name,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(getattr(getattr(config, "device_config", None), "device_type", "")),
        start_time=time.time(),
        block_size=block_size,
        num_gpu_blocks=scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=model.max_model_len,
        enable_chunked_prefill=bool(limits.enable_chunked_prefill),
        enable_prefix_caching=bool(cache.enable_prefix_caching),
        policy=str(limits.policy),
        groups=[kinds[main], *kinds[:main], *kinds[main + 1 :]] if len(kinds) > 1 else [],
        tokenizer=_tokenizer(model, settings),
        tokenizer_revision=getattr(model, "tokenizer_revision", None),
        data_parallel_rank=rank,
        max_loras=lora.max_loras if lora else None,
        # Both are 0 for a model without an encoder.
        max_num_encoder_input_tokens=getattr(scheduler, "max_num_encoder_input_tokens", 0) or None,
        encoder_cache_size=getattr(
            getattr(scheduler, "encoder_cache_manager", None), "cache_size", 0
        )
        or None,
        has_random_suffix=not _is_set("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"),
    )
    is_append_only = all(kind in _APPEND_ONLY for kind in kinds)
    return started, Layout(main, whole_tables=not is_append_only)


def _tokenizer(model: Any, settings: AdapterSettings) -> str | None:
    if settings.tokenizer is not None:
        return settings.tokenizer or None
    return None if model.skip_tokenizer_init else model.tokenizer


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false")
