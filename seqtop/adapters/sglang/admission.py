"""Observes why SGLang's scheduler admits no further request."""

from __future__ import annotations

from typing import Any

from seqtop.adapters.wrapping import Wrap


class Admission:
    """Observes the admission of waiting requests by one scheduler.

    Args:
        scheduler: SGLang's scheduler.
        wrap: Wraps a method.
    """

    def __init__(self, scheduler: Any, wrap: Wrap) -> None:
        self._scheduler = scheduler
        self._refused: Any = None
        """The request for which the last attempt to admit one found no memory."""
        if (adder := _adder_class(scheduler)) is not None:
            wrap(adder, "add_one_req", after=self._after_add)

    def _after_add(self, result: Any, adder: Any, req: Any, *_: Any, **__: Any) -> None:
        self._refused = None
        if req not in adder.can_run_list and result.name == "NO_TOKEN":
            self._refused = req

    def begin(self) -> None:
        """Forgets the last attempt, if the scheduler is about to make another one."""
        if not getattr(self._scheduler.running_batch, "batch_is_full", False):
            self._refused = None

    def cause(self, num_running: int, num_tokens: int, most_tokens: int) -> str | None:
        """Returns why the first request of the waiting queue waits; `None` without one.

        Args:
            num_running: The running requests.
            num_tokens: The prompt tokens in the batch that was made.
            most_tokens: The most that a batch may have.
        """
        scheduler = self._scheduler
        if not scheduler.waiting_queue:
            return None
        if getattr(scheduler, "_engine_paused", False):
            return "paused"
        if num_running >= scheduler.max_running_requests:
            return "seq_limit"
        first = scheduler.waiting_queue[0]
        if self._refused is first:
            available = scheduler.token_to_kv_pool_allocator.available_size()
            available += scheduler.tree_cache.evictable_size()
            needed = len(first.origin_input_ids) + len(first.output_ids)
            return "no_blocks" if needed > available else "reserved_blocks"
        return "token_budget" if num_tokens >= most_tokens else "unknown"


def _adder_class(scheduler: Any) -> Any:
    if hasattr(scheduler, "get_prefill_adder_class"):
        return scheduler.get_prefill_adder_class()
    try:
        from sglang.srt.managers.schedule_policy import PrefillAdder
    except ImportError:
        return None
    return PrefillAdder if hasattr(PrefillAdder, "add_one_req") else None
