"""One run of a version of vLLM with and without async scheduling, for the table of versions.

    python tests/vllm/mixed_run.py

Requests with shared prefixes come and go, in a pool that is too small for them: chunked prefills,
preemptions, stop tokens and aborts. Prints a line of JSON.
"""

from __future__ import annotations

import json
import traceback
from typing import Any

import token_executor
from stepped_against_vllm import prompt, sampling
from stepping import make_core, stepped

from seqtop.adapters.attachment import UnsupportedEngineError
from seqtop.adapters.vllm.probe import probe

NUM_REQUESTS = 24


def run(*, is_async: bool) -> dict[str, Any]:
    """The numbers of steps and preemptions, and the columns that are not available."""
    core = make_core(num_gpu_blocks_override=24, async_scheduling=is_async)
    probe(core.scheduler)  # says why, if it cannot be observed
    with stepped(core) as engine:
        for number in range(NUM_REQUESTS):
            name = f"req-{number}"
            stop = token_executor.token(f"{name}-00000000", 49) if number % 3 == 1 else None
            params = sampling(
                max_tokens=15 + number, stop_token_ids=[stop] if stop is not None else None
            )
            engine.add(name, prompt(number, 40 + 5 * (number % 7)), params=params)
            engine.step()
            if number % 8 == 7:
                engine.abort(f"req-{number - 2}")
        engine.run()
        num_preemptions = sum(
            request.num_preemptions for request in engine.session.state.requests.values()
        )
        assert num_preemptions, "the pool was meant to be too small"
        missing = {
            key: why for key, why in engine.not_available.items() if "--cudagraph" not in why
        }
        steps = engine.num_compared
    return {"steps": steps, "preemptions": num_preemptions, "not_available": missing}


def outcome(*, is_async: bool) -> dict[str, Any]:
    try:
        return run(is_async=is_async)
    except UnsupportedEngineError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - it is a row of the table
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print(json.dumps({"sync": outcome(is_async=False), "async": outcome(is_async=True)}))
