"""The events of a correct run."""

import pytest

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.sequence import SamplingParams
from tests.support.mutants import PROMPTS, PayloadCollector


@pytest.fixture(scope="session")
def payloads() -> list[bytes]:
    """The events of a run in which everything that the rules look at happens."""
    clock = iter(range(10**6))
    engine = LLMEngine(
        EngineConfig(
            device="cpu",
            num_gpu_blocks=20,
            max_num_seqs=4,
            max_num_batched_tokens=32,
            max_model_len=256,
        ),
        clock=lambda: 1_000.0 + 0.01 * next(clock),
    )
    collected = PayloadCollector()
    steps = StepPublisher(collected)
    collected.publish(engine_info(engine, engine_id="test", control=False))
    for number, prompt in enumerate(PROMPTS):
        params = SamplingParams(
            temperature=0.0, max_tokens=90, ignore_eos=True, logprobs=1 if number == 1 else None
        )
        for group in engine.add_request(f"req-{number}", prompt, params):
            steps.arrived(group)
    while engine.has_unfinished_requests():
        record = engine.step()
        steps.stepped(record)
        if record.step == 30:
            engine.abort_request("req-3")
    return collected.payloads
