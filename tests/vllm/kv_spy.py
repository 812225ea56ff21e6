"""Writes down which hashes vLLM's block pool knows after each step, as `spy.py` does the rest."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any


def name(block_hash: bytes | int) -> str:
    return block_hash.hex() if isinstance(block_hash, bytes) else str(block_hash)


def install(path: str) -> None:
    """Have the schedulers of this process observed."""
    from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash
    from vllm.v1.core.sched.scheduler import Scheduler

    file = Path(path).open("w")  # noqa: SIM115 - until the process ends
    update, start = Scheduler.update_from_output, Scheduler.__init__
    num_batches = 0

    @functools.wraps(start)
    def started(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        publish = self.kv_event_publisher.publish

        def published(batch: Any) -> None:
            nonlocal num_batches
            num_batches += 1
            publish(batch)

        self.kv_event_publisher.publish = published

    @functools.wraps(update)
    def updated(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = update(self, *args, **kwargs)
        known = self.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
        cached = {
            name(maybe_convert_block_hash(get_block_hash(key))): (
                len(held) if isinstance(held, dict) else 1
            )
            for key, held in known.items()
        }
        file.write(json.dumps({"num_batches": num_batches, "cached": cached}) + "\n")
        file.flush()
        return result

    Scheduler.__init__ = started
    Scheduler.update_from_output = updated
