"""The engine's greedy tokens are those of transformers, however the steps are cut."""

import random
from pathlib import Path
from typing import Any

import pytest

from engine_stub.config import DEFAULT_MODEL, EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.step_record import StepRecord
from engine_stub.worker.model_runner import ModelOutput
from seqtop.sequence import ExecuteModelRequest, SamplingParams
from seqtop.wire import decode, encode
from tests.support.checkpoints import generate
from tests.support.running import MakeEngine

NUM_PROMPTS = 32
MAX_TOKENS = 24
BLOCK_SIZE = 8


RANDOM, BUNDLED = "random weights", "bundled weights"
MORE = pytest.param(BUNDLED, marks=pytest.mark.release("the same with other weights"))


@pytest.fixture(scope="module", params=[RANDOM, MORE])
def model(request: pytest.FixtureRequest, tiny_model: Path) -> Path:
    return tiny_model if request.param == RANDOM else DEFAULT_MODEL


@pytest.fixture(scope="module")
def prompts(model: Path) -> list[list[int]]:
    """Mixed lengths from 1 to 98 tokens; every other one begins with the same 35."""
    rng = random.Random(7)
    shared = [rng.randrange(1, 257) for _ in range(35)]
    lengths = [1, 2, 7, 8, 9, 63, *(rng.randrange(3, 64) for _ in range(NUM_PROMPTS - 6))]
    own = [[rng.randrange(1, 257) for _ in range(length)] for length in lengths]
    return [shared + prompt if index % 2 else prompt for index, prompt in enumerate(own)]


@pytest.fixture(scope="module")
def expected(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    return generate(model, prompts, MAX_TOKENS)


def run(engine: LLMEngine, prompts: list[list[int]]) -> tuple[list[list[int]], list[StepRecord]]:
    """The output tokens of prompts that are all there from the start, and the steps it took."""
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    groups = [
        engine.add_request(f"r{index}", prompt, params)[0] for index, prompt in enumerate(prompts)
    ]
    records = []
    while engine.has_unfinished_requests():
        records.append(engine.step())
        engine.block_manager.check()
    return [list(group.first_seq.get_output_token_ids()) for group in groups], records


def num_chunks(records: list[StepRecord]) -> int:
    """Groups that were computed without sampling: parts of prompts."""
    return sum(
        not group.do_sample
        for record in records
        for group in record.execute_model_req.seq_group_metadata_list
    )


@pytest.fixture(scope="module")
def make_engine(model: Path) -> MakeEngine:
    def make(**settings: Any) -> LLMEngine:
        defaults: dict[str, Any] = {
            "model": model,
            "device": "cpu",
            "dtype": "float32",
            "block_size": BLOCK_SIZE,
            "num_gpu_blocks": 1024,
            "max_num_seqs": NUM_PROMPTS,
            "max_num_batched_tokens": 4096,
            "max_model_len": 160,
        }
        return LLMEngine(EngineConfig(**(defaults | settings)))

    return make


def test_one_batch(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(enable_prefix_caching=False)
    outputs, records = run(engine, prompts)
    assert outputs == expected
    assert len(records[0].scheduled) == NUM_PROMPTS
    assert num_chunks(records) == 0
    assert records[-1].blocks.prefix_queries == 0


def test_without_chunked_prefill(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(enable_chunked_prefill=False, max_num_batched_tokens=160)
    outputs, records = run(engine, prompts)
    assert outputs == expected
    assert num_chunks(records) == 0


def test_chunks_mixed_with_decodes(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(max_num_batched_tokens=NUM_PROMPTS, enable_prefix_caching=False)
    outputs, records = run(engine, prompts)
    assert outputs == expected
    assert num_chunks(records) > NUM_PROMPTS
    assert any(record.num_prefill_tokens and record.num_decode_tokens for record in records)


def test_prefix_cache(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(max_num_seqs=4)
    outputs, records = run(engine, prompts)
    assert outputs == expected
    # All but those that were admitted along with the first find the shared 4 full blocks.
    assert records[-1].blocks.prefix_hits >= (NUM_PROMPTS // 2 - 4) * 4 * BLOCK_SIZE
    again, records = run(engine, prompts)
    assert again == expected
    assert all(update.seq.data.get_num_cached_tokens() for update in records[0].updates[1:2])


def test_preemption(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(num_gpu_blocks=40, enable_prefix_caching=False)
    outputs, records = run(engine, prompts)
    assert outputs == expected
    preempted = [preemption.request_id for record in records for preemption in record.preemptions]
    assert len(preempted) > 5


@pytest.mark.parametrize("chunked", [True, False])
def test_swapping(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]], chunked: bool
) -> None:
    engine = make_engine(
        num_gpu_blocks=40,
        preemption_mode="swap",
        num_cpu_blocks=20,
        enable_prefix_caching=False,
        enable_chunked_prefill=chunked,
        max_num_batched_tokens=45 if chunked else 160,
    )
    outputs, records = run(engine, prompts)
    assert outputs == expected
    modes = [preemption.mode for record in records for preemption in record.preemptions]
    assert modes.count("swap") > 5
    num_out = sum(len(record.execute_model_req.blocks_to_swap_out) for record in records)
    num_in = sum(len(record.execute_model_req.blocks_to_swap_in) for record in records)
    assert num_out == num_in > 0
    assert records[-1].blocks.free_cpu == 20


@pytest.mark.parametrize("model", [RANDOM, BUNDLED], indirect=True)
def test_everything_at_once(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(num_gpu_blocks=24, max_num_batched_tokens=37, num_cpu_blocks=14,
                         preemption_mode="swap")  # fmt: skip
    outputs, records = run(engine, prompts)
    assert outputs == expected
    modes = {preemption.mode for record in records for preemption in record.preemptions}
    assert modes == {"swap", "recompute"}
    assert num_chunks(records) > 5
    assert records[-1].blocks.prefix_hits > 0


def test_worker_behind_a_wire(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(num_gpu_blocks=24, max_num_batched_tokens=37)
    worker, execute = engine.worker, engine.worker.execute_model

    def execute_sent(execute_model_req: ExecuteModelRequest) -> ModelOutput:
        return execute(decode(encode(execute_model_req), ExecuteModelRequest))

    worker.execute_model = execute_sent
    outputs, records = run(engine, prompts)
    assert outputs == expected
    assert sum(len(record.preemptions) for record in records) > 5
    assert worker.seq_groups == {}
