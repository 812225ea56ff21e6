"""A real AsyncLLM with its EngineCore process, a made-up model, and requests to serve.

    python tests/vllm/serve.py [--async-scheduling] [--policy fcfs|priority] [--draft]
        [--data-parallel-size N]

Says `ready to serve` when it has started, waits for a line on its standard input, serves, and
prints how each request ended, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "engine_stub" / "weights"
NUM_REQUESTS = 60
ABORTED_AFTER = {7: 3, 23: 1, 41: 10}
"""Requests whose client leaves, and after how many tokens."""


def prompt(number: int) -> list[int]:
    """A beginning of 16 to 80 tokens shared with others, and an end of one's own."""
    shared = [300 + position for position in range(16 * (1 + number % 5))]
    return shared + [900 + number] * (5 + number % 40)


def num_tokens(number: int) -> int:
    """The tokens after which a request ends by itself."""
    return 20 + number % 50


def engine_arguments(options: argparse.Namespace) -> Any:
    from token_executor import TokenExecutor
    from vllm.engine.arg_utils import AsyncEngineArgs

    more: dict[str, Any] = {}
    if options.draft:
        more["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_max": 2,
        }
    if "KV_EVENTS" in os.environ:
        from vllm.config.kv_events import KVEventsConfig

        more["kv_events_config"] = KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=os.environ["KV_EVENTS"],
            replay_endpoint=os.environ["KV_REPLAY"],
            topic="kv",
        )
    return AsyncEngineArgs(
        model=str(MODEL),
        skip_tokenizer_init=True,
        dtype="float16",
        max_model_len=256,
        block_size=16,
        num_gpu_blocks_override=30,
        max_num_seqs=8,
        max_num_batched_tokens=96,
        enable_prefix_caching=True,
        distributed_executor_backend=TokenExecutor,
        enforce_eager=True,
        async_scheduling=options.async_scheduling,
        scheduling_policy=options.policy,
        data_parallel_size=options.data_parallel_size,
        disable_log_stats=False,
        **more,
    )


async def serve(options: argparse.Namespace) -> list[dict[str, Any]]:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    config = engine_arguments(options).create_engine_config()
    # vLLM's CPU platform turns it off.
    config.scheduler_config.async_scheduling = options.async_scheduling
    engine = AsyncLLM.from_vllm_config(config)

    async def one(number: int) -> dict[str, Any]:
        await asyncio.sleep(0.02 * (number // 10))
        params = SamplingParams(
            max_tokens=num_tokens(number), temperature=0, ignore_eos=True, detokenize=False
        )
        tokens: list[int] = []
        request = {"prompt_token_ids": prompt(number)}
        more = {"priority": number % 3} if options.policy == "priority" else {}
        outputs = engine.generate(request, params, f"req-{number}", **more)
        async for output in outputs:
            tokens = list(output.outputs[0].token_ids)
            if len(tokens) >= ABORTED_AFTER.get(number, 10_000):
                await engine.abort(f"req-{number}")
                return {"id": f"req-{number}", "tokens": tokens, "reason": "abort"}
        return {
            "id": output.request_id,
            "tokens": tokens,
            "reason": output.outputs[0].finish_reason,
        }

    print("ready to serve", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    ended = await asyncio.gather(*[one(number) for number in range(NUM_REQUESTS)])
    await asyncio.sleep(0.5)  # for the aborted ones to leave the scheduler
    engine.shutdown()
    return ended


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--policy", default="fcfs")
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--data-parallel-size", type=int, default=1)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print(json.dumps(asyncio.run(serve(options))), flush=True)


if __name__ == "__main__":
    main()
