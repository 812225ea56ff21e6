"""Records runs of vLLM's EngineCore: `record_vllm.py` in the environment of `make test-vllm`."""

from __future__ import annotations

import random
from pathlib import Path

from stepping import SteppedEngine, make_core, stepped
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.parallel_sampling import ParentRequest

from seqtop.history import FileWriter

SHARED = [300 + position for position in range(96)]
NUM_REQUESTS = 60


def add_samples(engine: SteppedEngine, name: str, prompt: list[int], length: int) -> None:
    """Adds a request that asks for two samples."""
    params = SamplingParams(n=2, temperature=1.0, ignore_eos=True, max_tokens=length)
    whole = engine.request(name, prompt, params=params)
    parent = ParentRequest(whole)
    for sample in range(2):
        own, child = parent.get_child_info(sample)
        engine.parents[own] = whole.request_id
        engine.add(own[:-9], prompt, params=child, external_req_id=whole.external_req_id)


def drive(engine: SteppedEngine) -> None:
    """Gives an engine a mixed load: more than its pool holds, and aborts of each sixth request."""
    choice = random.Random(5)
    engine.add("session", SHARED[:40], max_tokens=6, resumable=True)
    for number in range(NUM_REQUESTS):
        own = [900 + number] * choice.randrange(1, 90)
        prompt = SHARED[: 16 * choice.randrange(5)] + own
        if number % 10 == 3:
            add_samples(engine, f"two-{number}", prompt, choice.randrange(2, 30))
        else:
            engine.add(f"req-{number}", prompt, max_tokens=choice.randrange(1, 60))
        for _ in range(choice.choice((0, 2, 4, 8))):
            engine.step()
        if number % 6 == 5 and f"req-{number}" in engine.session.state.requests:
            engine.abort(f"req-{number}")
        if number in (20, 40):
            engine.add("session", [8] * 20, max_tokens=6, resumable=True)
    engine.add("session", [], max_tokens=6, resumable=False)
    engine.run()


def main() -> None:
    for name, is_async in (("vllm", False), ("vllm-async", True)):
        core = make_core(
            async_scheduling=is_async,
            num_gpu_blocks_override=27,
            max_num_batched_tokens=48,
            served_model_name="weights",
        )
        path = Path(__file__).with_name(f"{name}.seqtop")
        with FileWriter(path, overwrite=True) as writer, stepped(core) as engine:
            engine.session.add_listener(writer.record)
            drive(engine)
        print(f"{name}: {engine.num_compared} steps, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
