"""The description of an engine, read from its scheduler."""

from __future__ import annotations

import time
from typing import Any, Final

from seqtop.adapters.observations import EngineStarted, Setting
from seqtop.adapters.sglang.radix_tree import is_observable
from seqtop.transport.publisher_settings import PublisherSettings

NUM_PADDING_PAGES: Final = 1
"""Page 0, where SGLang writes what belongs to no request. It is in addition to the pool's size."""

_SETTINGS: Final = (
    "schedule_policy",
    "schedule_conservativeness",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "prefill_max_requests",
    "enable_mixed_chunk",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "enable_priority_scheduling",
    "schedule_low_priority_values_first",
    "priority_scheduling_preemption_threshold",
    "max_queued_requests",
    "enable_hierarchical_cache",
    "disaggregation_mode",
    "speculative_algorithm",
    "tp_size",
    "pp_size",
    "dp_size",
)
"""Options of SGLang that its scheduler's decisions depend on. No version has all of them."""


def publishes(scheduler: Any) -> bool:
    """Returns whether the process is the one of its ranks that publishes.

    Ranks of tensor, context and pipeline parallelism have the same requests. Those of data
    parallelism have their own.
    """
    return not any(rank(scheduler, name) for name in ("attn_tp_rank", "attn_cp_rank", "pp_rank"))


def rank(scheduler: Any, name: str) -> int:
    """Returns one of the ranks of a scheduler; 0 if it has none."""
    owner = getattr(scheduler, "ps", None)  # up to 0.5.20
    if owner is None:
        from sglang.srt.runtime_context import get_parallel

        owner = get_parallel()
    return getattr(owner, name) or 0


def describe(scheduler: Any, settings: PublisherSettings) -> EngineStarted:
    """Returns the description of the engine of a scheduler."""
    import sglang

    model, options = scheduler.model_config, scheduler.server_args
    name = getattr(options, "served_model_name", None) or options.model_path
    dp_rank, page_size = rank(scheduler, "dp_rank"), scheduler.page_size
    return EngineStarted(
        engine=f"SGLang {sglang.__version__}",
        engine_id=settings.engine_id or (f"{name} dp{dp_rank}" if dp_rank else name),
        model=name,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(getattr(options, "device", "")),
        start_time=time.time(),
        block_size=page_size,
        num_gpu_blocks=scheduler.max_total_num_tokens // page_size + NUM_PADDING_PAGES,
        max_num_seqs=scheduler.max_running_requests,
        max_num_batched_tokens=most_tokens(scheduler),
        max_model_len=model.context_len,
        enable_chunked_prefill=getattr(scheduler, "chunked_prefill_size", None) is not None,
        enable_prefix_caching=not getattr(options, "disable_radix_cache", False),
        policy=_policy(scheduler),
        groups=[],
        tokenizer=_tokenizer(options, settings),
        tokenizer_revision=getattr(options, "revision", None),
        data_parallel_rank=dp_rank,
        has_random_suffix=True,
        scheduler_settings=_scheduler_settings(options),
        reports_cached_blocks=is_observable(scheduler),
        max_loras=None if lora_manager(scheduler) is None else _max_loras(scheduler),
    )


def lora_manager(scheduler: Any) -> Any:
    """Returns the manager of the LoRA adapters; `None` without any."""
    runner = getattr(getattr(scheduler, "tp_worker", None), "model_runner", None)
    return getattr(runner, "lora_manager", None)


def _max_loras(scheduler: Any) -> int | None:
    most = getattr(scheduler, "max_loras_per_batch", None)
    return most if isinstance(most, int) else None


def most_tokens(scheduler: Any) -> int:
    """Returns the most prompt tokens of a batch."""
    chunk = getattr(scheduler, "chunked_prefill_size", None)
    most: int = scheduler.max_prefill_tokens
    return most if chunk is None else min(chunk, most)


def _policy(scheduler: Any) -> str:
    """Returns the order of the waiting queue, as in `EngineStarted.policy`."""
    is_fcfs = getattr(scheduler, "schedule_policy", "") == "fcfs"
    is_plain = is_fcfs and not getattr(scheduler, "enable_priority_scheduling", False)
    return "preempted_last" if is_plain else "unknown"


def _scheduler_settings(options: Any) -> dict[str, Setting]:
    """Returns the settings that this version of SGLang has."""
    found = {name: getattr(options, name) for name in _SETTINGS if hasattr(options, name)}
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in found.items()
    }


def _tokenizer(options: Any, settings: PublisherSettings) -> str | None:
    if settings.tokenizer is not None:
        return settings.tokenizer or None
    if getattr(options, "skip_tokenizer_init", False):
        return None
    path: str = getattr(options, "tokenizer_path", None) or options.model_path
    return path
