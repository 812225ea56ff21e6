"""A real SGLang engine with its processes, and requests to serve.

    python tests/sglang/serve.py [--no-overlap] [--page-size N] [--dp-size N]

Says `ready to serve` when it has started, waits for a line on its standard input, serves, and
prints how each request ended, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parents[2] / "engine_stub" / "weights"
FIELDS = ("prompt_tokens", "completion_tokens", "num_retractions")


async def serve(options: argparse.Namespace) -> None:
    import sglang

    engine = sglang.Engine(
        model_path=str(MODEL),
        device="cpu",
        dtype="float32",
        max_total_tokens=256,
        page_size=options.page_size,
        dp_size=options.dp_size,
        chunked_prefill_size=32,
        max_running_requests=8,
        schedule_conservativeness=0.1,
        mem_fraction_static=0.3,
        grammar_backend="none",
        disable_overlap_schedule=options.no_overlap,
        log_level="error",
    )
    tokens: dict[str, int] = {}
    ended: dict[str, dict[str, Any]] = {}

    async def has(name: str, num_tokens: int) -> None:
        while tokens.get(name, 0) < num_tokens:
            await asyncio.sleep(0.002)

    async def one(
        name: str, ids: list[int], num_tokens: int, after: str = "", num_before: int = 2
    ) -> None:
        """Sends a request when another one has some tokens."""
        if after:
            await has(after, num_before)
        # `ignore_eos` would reserve all of `max_new_tokens`, and nothing would be retracted.
        params = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "temperature": 0}
        stream = await engine.async_generate(
            input_ids=ids, sampling_params=params, rid=name, stream=True
        )
        async for output in stream:
            tokens[name] = output["meta_info"].get("completion_tokens", 0)
        meta = output["meta_info"]
        ended[name] = {"reason": meta["finish_reason"]["type"], "text": output["text"]}
        ended[name] |= {key: meta.get(key) for key in FIELDS}

    async def abort(name: str, after: str, num_before: int) -> None:
        await has(after, num_before)
        engine.tokenizer_manager.abort_request(name)

    print("ready to serve", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    shared = [100 + position for position in range(40)]
    await one("first", shared + [300] * 8, 10)  # leaves a prefix in the radix tree
    jobs = [
        one(f"r{i}", shared + [400 + i] * 10, 90 + 5 * i, f"r{i - 1}" if i else "")
        for i in range(4)
    ]
    jobs += [one("running", shared + [500] * 5, 200, "r0", 40), abort("running", "running", 10)]
    jobs += [one("long", [600 + i for i in range(100)], 5, "r0", 50)]
    jobs += [one("queued", [700 + i for i in range(150)], 50, "r0", 50)]
    jobs += [abort("queued", "r0", 60)]
    await asyncio.gather(*jobs)
    await asyncio.sleep(1)  # SGLang then kills its processes, also the one that publishes
    engine.shutdown()
    print(json.dumps(ended), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-overlap", action="store_true")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--dp-size", type=int, default=1)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
