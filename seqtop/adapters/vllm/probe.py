"""Checks which attributes that the adapter reads a scheduler has.

They are not a public interface of vLLM. So versions are not compared: a version is observed,
whatever its number, as far as its attributes allow.
"""

from __future__ import annotations

from typing import Any, Final

from seqtop.adapters.attachment import UnsupportedEngineError
from seqtop.adapters.probing import missing_attributes

_POOL: Final = "kv_cache_manager.block_pool"

_REQUIRED: Final = (
    "add_request",
    "schedule",
    "update_from_output",
    "get_request_counts",
    "_preempt_request",
    "_free_request",
    "requests",
    "waiting",
    "running",
    "vllm_config.model_config",
    "vllm_config.cache_config",
    "vllm_config.scheduler_config",
    "vllm_config.parallel_config",
    "kv_cache_config.kv_cache_groups",
    "kv_cache_manager.allocate_slots",
    "kv_cache_manager.get_block_ids",
    f"{_POOL}.num_gpu_blocks",
    f"{_POOL}.get_num_free_blocks",
    f"{_POOL}.free_blocks",
)
"""Attributes of the scheduler without which no row would be true."""

_OPTIONAL: Final = {
    "why": (
        "max_num_running_reqs",
        "max_num_scheduled_tokens",
        "scheduler_config",
        "waiting.prepend_requests",
        "kv_cache_manager.get_computed_blocks",
    ),
    "cached_blocks": (
        f"{_POOL}.blocks",
        f"{_POOL}.touch",
        f"{_POOL}._maybe_evict_cached_block",
        f"{_POOL}.reset_prefix_cache",
    ),
    "prefix_misses": (
        "kv_cache_manager.get_computed_blocks",
        f"{_POOL}.hash_block_size",
        f"{_POOL}.cache_full_blocks",
        f"{_POOL}.get_new_blocks",
        f"{_POOL}.cached_block_hash_to_block.get_one_block",
    ),
    "cuda_graph": ("vllm_config.observability_config.cudagraph_metrics",),
    "encoder": (
        "max_num_encoder_input_tokens",
        "encoder_cache_manager.cache_size",
        "encoder_cache_manager.num_free_slots",
    ),
    "end": ("shutdown",),
}
"""Attributes of the scheduler that one column or figure needs, by its key in `EngineInfo`."""

_OF_REQUESTS: Final = {
    "parents": "from_engine_core_request",
    "encoder": "get_num_encoder_embeds",
}
"""The method of vLLM's `Request` that a column or figure needs."""


def probe(scheduler: Any) -> dict[str, str]:
    """Returns the columns and figures that a V1 scheduler cannot give, with the reasons.

    The keys are those of `EngineInfo.not_available`.

    Raises:
        UnsupportedEngineError: It lacks required attributes, which the message names.
    """
    if missing := missing_attributes(scheduler, _REQUIRED):
        import vllm

        raise UnsupportedEngineError(
            f"vLLM {vllm.__version__} cannot be observed, as its scheduler has no"
            f" {', '.join(missing)}"
        )
    not_available = {
        key: f"the scheduler has no {', '.join(missing)}"
        for key, paths in _OPTIONAL.items()
        if (missing := missing_attributes(scheduler, paths))
    }
    for key, name in _OF_REQUESTS.items():
        if not hasattr(request_class(), name):
            not_available.setdefault(key, f"vLLM has no Request.{name}")
    if "why" in not_available:
        not_available["harm"] = not_available["why"]
    if "cached_blocks" in not_available:  # they are observed together
        not_available.setdefault("prefix_misses", not_available["cached_blocks"])
    if "cuda_graph" not in not_available and not (
        scheduler.vllm_config.observability_config.cudagraph_metrics
    ):
        not_available["cuda_graph"] = "vLLM runs without --cudagraph-metrics"
    return not_available


def request_class() -> Any:
    """Returns vLLM's `Request`, or `None` if it has another name."""
    try:
        from vllm.v1.request import Request
    except ImportError:
        return None
    return Request
