"""The engine's greedy tokens are those of transformers, however the steps are cut."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine_stub.config import DEFAULT_MODEL, EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.step_record import StepRecord
from engine_stub.worker.model_output import ModelOutput
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


def counts(records: list[StepRecord]) -> Counter[str]:
    """The numbers of what happened in a run."""
    seen: Counter[str] = Counter()
    for record in records:
        request = record.execute_model_req
        # Groups that were computed without sampling: parts of prompts.
        seen["chunks"] += sum(not sent.do_sample for sent in request.seq_group_metadata_list)
        seen.update(preemption.mode for preemption in record.preemptions)
        seen["mixed"] += bool(record.num_prefill_tokens and record.num_decode_tokens)
        seen["out"] += len(request.blocks_to_swap_out)
        seen["in"] += len(request.blocks_to_swap_in)
    seen["hits"] = records[-1].blocks.prefix_hits
    return seen


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


SWAPPING = {"num_gpu_blocks": 40, "preemption_mode": "swap", "num_cpu_blocks": 20}
CASES: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({}, {}),
    ({"enable_chunked_prefill": False, "max_num_batched_tokens": 160}, {}),
    ({"max_num_batched_tokens": NUM_PROMPTS}, {"chunks": NUM_PROMPTS, "mixed": 1}),
    ({"num_gpu_blocks": 40}, {"recompute": 5}),
    (SWAPPING | {"max_num_batched_tokens": 45}, {"swap": 5, "chunks": 1}),
    (SWAPPING | {"max_num_batched_tokens": 160, "enable_chunked_prefill": False}, {"swap": 5}),
]
"""Settings, and how often each of `counts` happens with them at least; without a number, never."""


@pytest.mark.parametrize(("settings", "least"), CASES)
def test_tokens_are_the_same(
    make_engine: MakeEngine,
    prompts: list[list[int]],
    expected: list[list[int]],
    settings: dict[str, Any],
    least: dict[str, int],
) -> None:
    outputs, records = run(make_engine(enable_prefix_caching=False, **settings), prompts)
    assert outputs == expected
    assert (len(records[0].scheduled) == NUM_PROMPTS) == (not settings)
    seen = counts(records)
    assert all(seen[name] > number for name, number in least.items()), seen
    for name in ("swap", "chunks", "hits"):
        assert name in least or seen[name] == 0, seen
    assert seen["out"] == seen["in"]
    assert (seen["out"] > 0) == ("swap" in least)
    stats = records[-1].blocks
    assert (stats.free_cpu, stats.prefix_queries) == (stats.total_cpu, 0)


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


def test_everything_at_once(
    make_engine: MakeEngine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(num_gpu_blocks=24, max_num_batched_tokens=37, num_cpu_blocks=14,
                         preemption_mode="swap")  # fmt: skip
    outputs, records = run(engine, prompts)
    assert outputs == expected
    seen = counts(records)
    assert min(seen["swap"], seen["recompute"], seen["hits"]) > 0
    assert seen["chunks"] > 5


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
