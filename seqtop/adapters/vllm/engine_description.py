"""The description of an engine, read from its scheduler."""

from __future__ import annotations

import dataclasses
import enum
import os
import time
from typing import Any, Final, NamedTuple

from seqtop.adapters.observations import EngineStarted, Setting
from seqtop.transport.publisher_settings import PublisherSettings

_APPEND_ONLY: Final = ("FullAttentionSpec", "MLAAttentionSpec", "TQFullAttentionSpec")
"""Kinds of KV cache whose block tables only grow."""

_SCHEDULER_SETTINGS: Final = {
    "scheduler_config": (
        "policy",
        "async_scheduling",
        "max_num_active_seqs",
        "max_num_scheduled_tokens",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "scheduler_reserve_full_isl",
        "watermark",
        "prefill_schedule_interval",
        "disable_chunked_mm_input",
        "disable_hybrid_kv_cache_manager",
        "scheduler_cls",
    ),
    "cache_config": ("prefix_cache_retention_interval", "prefix_match_unit"),
    "parallel_config": (
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ),
    "speculative_config": ("method", "num_speculative_tokens"),
    "kv_transfer_config": ("kv_connector", "kv_role"),
}
"""Settings that a scheduler's decisions depend on, beside those of `EngineStarted`, by the part of
vLLM's configuration. No version of vLLM has all of them."""
_SHAPE: Final = ("num_kv_heads", "head_size", "head_size_v", "page_size_padded")
"""Fields of a KV-cache specification on which the memory of a block depends, and no decision."""
_MISSING: Final = object()
_OWN_OPTIONS: Final = ("scheduler_config", "cache_config", "parallel_config")
"""Parts whose settings are options of vLLM by their names alone. Those of other parts are named as
`speculative_config.method`, which is how vLLM's command line takes them."""


class Layout(NamedTuple):
    """The way to read the block tables of an engine."""

    main_group: int = 0
    """The index of the KV-cache group whose table comes first."""
    whole_tables: bool = False
    """True if blocks within a table can be freed, so that whole tables have to be sent."""


def describe(scheduler: Any, settings: PublisherSettings) -> tuple[EngineStarted, Layout]:
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
        engine=f"vLLM {vllm.__version__}",
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
        policy=_queue_order(scheduler, str(limits.policy)),
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
        kv_cache_specs=[_kv_cache_spec(spec) for spec in specs],
        bytes_per_block=_bytes_per_block(scheduler.kv_cache_config),
        has_random_suffix=not _is_set("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"),
        scheduler_settings=_scheduler_settings(config),
        stops_outside=True,
    )
    is_append_only = all(kind in _APPEND_ONLY for kind in kinds)
    return started, Layout(main, whole_tables=not is_append_only)


def _queue_order(scheduler: Any, policy: str) -> str:
    """Returns the order of the waiting queue, as in `EngineStarted.policy`.

    Older versions compare requests that hold blocks with the others, by their policy.
    """
    is_alone = policy == "priority" and not hasattr(scheduler, "kv_holding_waiting")
    return "priority_alone" if is_alone else policy


def _bytes_per_block(config: Any) -> int | None:
    """Returns the bytes of a block on this rank: some versions say those of each tensor."""
    tensors = getattr(config, "kv_cache_tensors", None)
    num_blocks = getattr(config, "num_blocks", 0)
    if not tensors or not num_blocks:
        return None
    return int(sum(tensor.size for tensor in tensors)) // num_blocks


def _kv_cache_spec(spec: Any) -> dict[str, Setting]:
    """Returns the kind of a KV-cache group and its plain values that are not the default ones."""
    values: dict[str, Setting] = {"kind": type(spec).__name__, "block_size": spec.block_size}
    for field in dataclasses.fields(spec) if dataclasses.is_dataclass(spec) else ():
        value: Any = getattr(spec, field.name)
        is_plain = isinstance(value, bool | int | float | str) and not isinstance(value, enum.Enum)
        if is_plain and value != field.default and field.name not in _SHAPE:
            values[field.name] = value
    return values


def _scheduler_settings(config: Any) -> dict[str, Setting]:
    """Returns the settings that this version of vLLM has."""
    settings: dict[str, Setting] = {}
    for part, names in _SCHEDULER_SETTINGS.items():
        values = getattr(config, part, None)
        for name in names:
            value: Any = getattr(values, name, _MISSING)
            if value is _MISSING:
                continue
            if not isinstance(value, bool | int | float | str | None):
                value = getattr(value, "__name__", str(value))  # a class of a scheduler
            settings[name if part in _OWN_OPTIONS else f"{part}.{name}"] = value
    return settings


def _tokenizer(model: Any, settings: PublisherSettings) -> str | None:
    if settings.tokenizer is not None:
        return settings.tokenizer or None
    return None if model.skip_tokenizer_init else model.tokenizer


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false")
