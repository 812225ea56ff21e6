"""Checks which attributes that the adapter reads a processor and its manager have.

None of them is a public interface of transformers. So versions are not compared: a version is
observed, whatever its number, as far as its attributes allow.
"""

from __future__ import annotations

from typing import Any, Final

from seqtop.adapters.attachment import UnsupportedEngineError
from seqtop.adapters.probing import missing_attributes

_REQUIRED: Final = (
    "update_batch",
    "prepare_next_batch",
    "max_batch_tokens",
    "scheduler.schedule_batch",
    "scheduler.add_waiting_request",
    "scheduler.finish_request",
    "scheduler.clear_cancelled_requests",
    "scheduler.active_requests",
    "scheduler.waiting_requests",
    "scheduler.waiting_requests_order",
    "cache.cache_allocators",
    "cache.pool.num_sectors",
    "cache.pool.num_free_sectors",
    "cache.pool.count_free_blocks",
    "cache.search_prefix_match",
    "cache.use_prefix_sharing",
    "offloading_manager.offload_requests",
)
"""Attributes of the processor without which no row would be true."""

_REQUIRED_OF_ALLOCATORS: Final = (
    "block_table",
    "blocks_per_sector",
    "tokens_per_page",
    "index",
    "ledger.cached_blocks",
)

_OPTIONAL: Final = {
    "why": (
        "scheduler.max_requests_per_batch",
        "scheduler.block_new_requests",
        "scheduler._try_to_meet_safety_margin",
        "scheduler.starved_requests",
        "scheduler._infer_request_tokens",
        "cache.can_store_request_tokens",
    ),
    "parents": ("cache.prepare_fork_request",),
}
"""Attributes of the processor that one column or figure needs, by its key in `EngineInfo`."""

_CACHE_IS_UNKNOWN: Final = "the adapter does not observe the content of the prefix cache"


def probe(processor: Any) -> dict[str, str]:
    """Returns the columns and figures that a processor cannot give, with the reasons.

    Raises:
        UnsupportedEngineError: It lacks required attributes, which the message names.
    """
    missing = missing_attributes(processor, _REQUIRED)
    for name, allocator in getattr(
        getattr(processor, "cache", None), "cache_allocators", {}
    ).items():
        missing += [
            f"{name}.{path}" for path in missing_attributes(allocator, _REQUIRED_OF_ALLOCATORS)
        ]
    if missing:
        import transformers

        raise UnsupportedEngineError(
            f"transformers {transformers.__version__} cannot be observed, as its"
            f" ContinuousBatchProcessor has no {', '.join(missing)}"
        )
    not_available = {
        key: f"the processor has no {', '.join(missing)}"
        for key, paths in _OPTIONAL.items()
        if (missing := missing_attributes(processor, paths))
    }
    if "why" in not_available:
        not_available["harm"] = not_available["why"]
    if processor.cache.use_prefix_sharing:
        not_available["prefix_misses"] = _CACHE_IS_UNKNOWN
    return not_available
