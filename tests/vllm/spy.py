"""Writes down what vLLM's scheduler itself holds after each step: a line of JSON a step.

It looks at everything, block by block, which the adapter must not; so it tells whether the
adapter's shortcuts are right.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, TextIO


def install(path: str) -> None:
    """Observes every scheduler of this process. The rank is appended to the path."""
    from vllm.v1.core.sched.scheduler import Scheduler

    files: dict[int, TextIO] = {}
    original = Scheduler.update_from_output

    @functools.wraps(original)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        parallel = self.vllm_config.parallel_config
        rank = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
        if rank not in files:
            files[rank] = Path(f"{path}{rank}").open("w")  # noqa: SIM115 - until the process ends
        _write(self, files[rank])
        return result

    Scheduler.update_from_output = update


def _write(scheduler: Any, file: TextIO) -> None:
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    blocks = [block for block in pool.blocks if not block.is_null]
    free = [block for block in blocks if not block.ref_cnt]
    waiting = [
        request
        for name in ("kv_holding_waiting", "skipped_waiting", "waiting")
        for request in getattr(scheduler, name, ())
    ]
    line = {
        "scheduler": type(scheduler).__name__,
        "requests": {
            request.request_id: {
                "status": request.status.name,
                # Without drafts in flight, which are no tokens of the request yet.
                "num_computed_tokens": min(request.num_computed_tokens, request.num_tokens),
                "block_ids": manager.get_block_ids(request.request_id)[0],
                "num_prompt_tokens": request.num_prompt_tokens,
                "output_token_ids": list(request.output_token_ids),
                "num_preemptions": request.num_preemptions,
            }
            for request in scheduler.requests.values()
        },
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in waiting],
        "num_free": sum(block.block_hash is None for block in free),
        "num_cached": sum(block.block_hash is not None for block in free),
        "num_used": len(blocks) - len(free),
    }
    file.write(json.dumps(line) + "\n")
    file.flush()
