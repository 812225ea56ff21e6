"""The description of an engine, read from its manager and its processor."""

from __future__ import annotations

import time
from typing import Any, Final

from seqtop.adapters.observations import EngineStarted, Setting
from seqtop.adapters.transformers.blocks import Blocks
from seqtop.transport.publisher_settings import PublisherSettings

_SETTINGS: Final = (
    "scheduler_type",
    "page_size",
    "num_blocks",
    "allow_block_sharing",
    "use_async_batching",
    "max_blocks_per_request",
    "cpu_offload_space",
    "cpu_offload_space_safety_threshold",
)
"""Fields of a `ContinuousBatchingConfig` that decisions depend on, beside those of
`EngineStarted`. No version of transformers needs to have all of them."""


def describe(
    manager: Any, processor: Any, blocks: Blocks, settings: PublisherSettings
) -> EngineStarted:
    """Returns the description of the engine of a `ContinuousBatchProcessor`."""
    import transformers

    model, cache, scheduler = manager.model, processor.cache, processor.scheduler
    path = str(getattr(model, "name_or_path", "") or "")
    name = path or type(model).__name__
    num_host_blocks = blocks.num_in(getattr(processor.offloading_manager, "_num_cpu_sectors", 0))
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return EngineStarted(
        engine=f"transformers {transformers.__version__}",
        engine_id=settings.engine_id or name,
        model=name,
        dtype=str(getattr(model, "dtype", "")).removeprefix("torch."),
        device=str(getattr(getattr(model, "device", None), "type", "")),
        start_time=time.time(),
        block_size=blocks.block_size,
        num_gpu_blocks=blocks.num_blocks,
        max_num_seqs=getattr(scheduler, "max_requests_per_batch", processor.max_batch_tokens),
        max_num_batched_tokens=processor.max_batch_tokens,
        max_model_len=limit or (blocks.num_blocks - blocks.num_reserved) * blocks.block_size,
        enable_chunked_prefill=True,
        enable_prefix_caching=bool(cache.use_prefix_sharing),
        policy="preempted_last",
        groups=blocks.kinds,
        tokenizer=(path or None) if settings.tokenizer is None else settings.tokenizer or None,
        tokenizer_revision=None,
        data_parallel_rank=0,
        has_random_suffix=False,
        kv_cache_specs=blocks.specs,
        scheduler_settings=_settings(manager, processor),
        num_reserved_blocks=blocks.num_reserved,
        # The blocks in host memory of several kinds have no order that viewers could know.
        num_cpu_blocks=(num_host_blocks or None) if not blocks.kinds else None,
    )


def _settings(manager: Any, processor: Any) -> dict[str, Setting]:
    """Returns the settings that this version of transformers has."""
    config = getattr(manager, "continuous_batching_config", None)
    found = {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}
    found["scheduler"] = type(processor.scheduler).__name__
    found["safety_margin"] = getattr(processor.scheduler, "safety_margin", None)
    # `can_store_request_tokens` counts free sectors only.
    found["evicts_for_waiting_requests"] = False
    found["max_tokens_read"] = getattr(processor.cache, "max_tokens_read", None)
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in found.items()
    }
