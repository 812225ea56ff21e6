"""Checks that a scheduler has the attributes that the adapter reads.

They are not a public interface of vLLM. So versions are not compared: a version that has all of
them is observed, whatever its number.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

_REQUIRED: Final = (
    "add_request schedule update_from_output get_request_counts shutdown"
    " _preempt_request _free_request requests waiting running"
    " max_num_running_reqs max_num_scheduled_tokens"
    " vllm_config.model_config vllm_config.cache_config vllm_config.scheduler_config"
    " vllm_config.parallel_config vllm_config.device_config"
    " kv_cache_config.kv_cache_groups"
    " kv_cache_manager.allocate_slots kv_cache_manager.get_block_ids"
    " kv_cache_manager.get_computed_blocks"
    " kv_cache_manager.block_pool.num_gpu_blocks kv_cache_manager.block_pool.blocks"
    " kv_cache_manager.block_pool.get_num_free_blocks kv_cache_manager.block_pool.touch"
    " kv_cache_manager.block_pool.free_blocks"
    " kv_cache_manager.block_pool._maybe_evict_cached_block"
    " kv_cache_manager.block_pool.reset_prefix_cache"
).split()
"""Attributes of the scheduler without which nothing can be observed."""


class UnsupportedVllmError(Exception):
    """This version of vLLM differs too much. The message is a sentence for the log."""


def probe(scheduler: Any) -> None:
    """Checks a V1 scheduler.

    Raises:
        UnsupportedVllmError: It lacks required attributes, which the message names.
    """
    if missing := [path for path in _REQUIRED if not _has(scheduler, path)]:
        import vllm

        raise UnsupportedVllmError(
            f"vLLM {vllm.__version__} cannot be observed, as its scheduler has no"
            f" {', '.join(missing)}"
        )


def _has(owner: Any, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True
