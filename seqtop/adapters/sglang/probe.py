"""Checks which attributes that the adapter reads SGLang has.

They are not a public interface. So versions are not compared: a version is observed, whatever its
number, as far as its attributes allow.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from seqtop.adapters.attachment import UnsupportedEngineError
from seqtop.adapters.probing import missing_attributes

_REQUIRED: Final = (
    "process_input_requests",
    "get_next_batch_to_run",
    "run_batch",
    "process_batch_result",
    "_add_request_to_queue",
    "waiting_queue",
    "running_batch",
    "last_batch",
    "chunked_req",
    "page_size",
    "max_total_num_tokens",
    "max_running_requests",
    "model_config",
    "server_args",
    "req_to_token_pool.req_to_token",
    "token_to_kv_pool_allocator.available_size",
    "tree_cache.evictable_size",
)
"""Attributes of the scheduler without which no row would be true."""

_OF_REQUESTS: Final = (
    "req_pool_idx",
    "kv_allocated_len",
    "kv_committed_len",
    "cache_protected_len",
)
"""Fields of `ReqKvInfo` without which no row would be true."""


def probe(scheduler: Any) -> dict[str, str]:
    """Returns the columns and figures that a scheduler cannot give, with the reasons.

    The keys are those of `EngineInfo.not_available`.

    Raises:
        UnsupportedEngineError: It lacks required attributes, which the message names.
    """
    import sglang
    from sglang.srt.managers import schedule_batch

    missing = [f"scheduler.{path}" for path in missing_attributes(scheduler, _REQUIRED)]
    if not hasattr(schedule_batch.Req, "reset_for_retract"):
        missing.append("Req.reset_for_retract")
    info = getattr(schedule_batch, "ReqKvInfo", None)
    fields = {field.name for field in dataclasses.fields(info)} if info is not None else set()
    missing += [f"ReqKvInfo.{name}" for name in _OF_REQUESTS if name not in fields]
    if missing:
        raise UnsupportedEngineError(
            f"SGLang {sglang.__version__} cannot be observed, as it has no {', '.join(missing)}"
        )
    not_available = {
        "end": "SGLang kills its processes, and the publisher's, when it shuts down",
        "prefix_misses": "the adapter keeps no history of what SGLang evicts",
    }
    if getattr(scheduler.tree_cache, "cache_controller", None) is not None:
        not_available["blocks_of_requests"] = "a hierarchical cache uses pages while it copies them"
    if has_priorities(scheduler) and not is_lower_first(scheduler):
        not_available["priority"] = "SGLang runs requests with higher values first"
    return not_available


def has_priorities(scheduler: Any) -> bool:
    """Returns whether requests have priorities."""
    return bool(getattr(scheduler, "enable_priority_scheduling", False))


def is_lower_first(scheduler: Any) -> bool:
    """Returns whether requests with lower priorities run first, as viewers show them."""
    return bool(getattr(scheduler, "schedule_low_priority_values_first", False))
