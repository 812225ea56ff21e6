"""The queues in which a request waits for something other than its turn."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Final

_QUEUES: Final = {
    "GRAMMAR_QUEUE": "grammar_manager.grammar_queue",
    "PREFILL_BOOTSTRAP_QUEUE": "disagg_prefill_bootstrap_queue.queue",
    "PREFILL_INFLIGHT_QUEUE": "disagg_prefill_inflight_queue",
    "DECODE_PREALLOC_QUEUE": "disagg_decode_prealloc_queue.queue",
    "DECODE_RETRACTED_QUEUE": "disagg_decode_prealloc_queue.retracted_queue",
    "DECODE_TRANSFER_QUEUE": "disagg_decode_transfer_queue.queue",
}
"""The queues by the name that viewers show. Those of disaggregation exist in their mode only."""


class NamedQueues:
    """The queues of a scheduler other than the waiting queue, as far as it has them."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._getters = [
            (name, getter)
            for name, path in _QUEUES.items()
            if _is_list(scheduler, getter := attrgetter(path))
        ]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yields each request in a queue, with the queue's name."""
        for name, getter in self._getters:
            for item in getter(self._scheduler):
                yield name, getattr(item, "req", item)  # a decode instance wraps its requests


def _is_list(scheduler: Any, getter: Any) -> bool:
    try:
        return isinstance(getter(scheduler), list)
    except AttributeError:
        return False
