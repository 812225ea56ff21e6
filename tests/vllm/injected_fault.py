"""Breaks the adapter in the EngineCore process, to see what becomes of vLLM."""

from __future__ import annotations

from typing import Any


def install(step: int) -> None:
    """Have the adapter fail when it takes down step number `step`."""
    from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver

    original, count = SchedulerObserver._after_update, iter(range(step))

    def updated(self: Any, *args: Any, **kwargs: Any) -> None:
        if next(count, None) is None:
            raise RuntimeError("injected")
        original(self, *args, **kwargs)

    SchedulerObserver._after_update = updated  # type: ignore[method-assign]
