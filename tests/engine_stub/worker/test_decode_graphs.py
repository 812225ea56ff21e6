"""Steps by attention kernels, padded to fixed shapes, give the same tokens; nothing is replayed."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.stages import Stage
from engine_stub.platforms.interface import AttentionKernels
from engine_stub.platforms.torch_attention import TorchAttention
from engine_stub.worker.decode_graphs import DecodeGraph, DecodeGraphs, batch_sizes
from engine_stub.worker.step_inputs import StepInputs
from engine_stub.worker.worker import Worker
from seqtop.sequence import IntermediateTensors, SamplingParams
from tests.support.attention_kernels import KERNELS, PAGED_ONLY
from tests.support.checkpoints import add_draft_head, generate, make_checkpoint
from tests.support.running import drain, greedy, run, tokens

MAX_TOKENS = 31
CPU = torch.device("cpu")
MORE = [
    pytest.param(name, marks=pytest.mark.release("more of the same kind"))
    for name in ("llama", "qwen2-sliding")
]


class WatchedGraphs(DecodeGraphs):
    """Remembers which graphs were asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.used: set[tuple[int, int]] = set()

    def fitting(self, num_seqs: int, num_queries: int = 1) -> DecodeGraph | None:
        graph = super().fitting(num_seqs, num_queries)
        self.used |= {shape for shape, other in self.by_shape.items() if other is graph}
        return graph


def with_graphs(engine: LLMEngine, kernels: AttentionKernels = KERNELS) -> WatchedGraphs:
    """Have an engine on a CPU run its steps as one on CUDA does."""
    worker = engine.worker
    assert isinstance(worker, Worker)
    worker.cache.kernels = kernels
    graphs = WatchedGraphs(
        worker.model,
        worker.cache,
        engine.config.max_num_seqs,
        engine.max_model_len,
        engine.config.num_draft_tokens,
    )
    worker.model_runner.graphs = graphs
    return graphs


def test_shapes() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(3) == [1, 2, 4]
    assert batch_sizes(8) == [1, 2, 4, 8]
    assert batch_sizes(20) == [1, 2, 4, 8, 16, 32]


def test_the_smallest_graph_that_fits(tiny_model: Path) -> None:
    model = load_model(tiny_model, device=CPU, dtype=torch.float32)
    cache = PagedKVCache(2, 8, 2, 4, 16, device=CPU, dtype=torch.float32)
    graphs = DecodeGraphs(model, cache, 5, max_model_len=64, num_draft_tokens=2)
    sizes = [8, 4, 2, 1]  # the others find room in the memory of the first one captured
    assert [*graphs.by_shape] == [(size, tokens) for tokens in (3, 1) for size in sizes]
    assert graphs.fitting(3) is graphs.fitting(4) is graphs.by_shape[4, 1]
    assert graphs.fitting(3, 3) is graphs.by_shape[4, 3]
    assert graphs.fitting(3, 2) is None
    assert graphs.fitting(9) is None


def step_inputs(
    input_ids: list[int], positions: list[int], slots: list[int], tables: list[list[int]]
) -> StepInputs:
    """One query of each sequence."""
    starts = [sum(map(len, tables[:index])) for index in range(len(tables))]
    first_tokens = [*range(len(tables))]
    blocks = [block for table in tables for block in table]
    return StepInputs(
        input_ids, positions, slots, [], 1, first_tokens, [1] * len(tables), starts, blocks
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_steps_own_slots_and_the_scratch_block_are_written(
    tiny_model: Path, rank: int
) -> None:
    """In either of two stages; and the result is that of the step as it is."""
    model = load_model(tiny_model, device=CPU, dtype=torch.float32, stage=Stage(rank, 2))
    cache = PagedKVCache(1, 9, 2, 4, 16, device=CPU, dtype=torch.float32)
    cache.pool.normal_(generator=torch.Generator().manual_seed(0))
    before = cache.pool.clone()
    input_ids, positions, tables = [17, 5, 99], [6, 0, 9], [[3, 1], [7], [8, 0, 2]]
    slots = [1 * 4 + 2, 7 * 4, 2 * 4 + 1]
    received = None
    if rank > 0:
        hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
        received = IntermediateTensors({"hidden_states": hidden})
    cache.kernels = KERNELS
    graph = DecodeGraphs(model, cache, max_num_seqs=8, max_model_len=64).fitting(3)
    assert isinstance(graph, DecodeGraph)
    with torch.inference_mode():
        # Left from a larger step.
        graph.load(step_inputs([1, 2, 3, 4], [9, 9, 9, 9], [25] * 4, [[4, 5, 6]] * 4))
        graph.load(step_inputs(input_ids, positions, slots, tables))
        output = graph.run(3, received)
        changed = (cache.pool != before).flatten(3).any(-1)[0]
        written = cache.pool[0].flatten(0, 1)[slots]
        expected = torch.zeros_like(changed)
        expected.view(-1)[slots] = True
        expected[cache.scratch_block, 0] = True
        assert torch.equal(changed, expected)

        cache.pool.copy_(before)
        cache.kernels = TorchAttention().kernels
        alone = []
        for row, table in enumerate(tables):
            own = step_inputs([input_ids[row]], [positions[row]], [slots[row]], [table])
            tensors = None
            if received is not None:
                tensors = IntermediateTensors({"hidden_states": hidden[row : row + 1]})
            alone.append(model(*own.to_device(cache), tensors))
        assert torch.allclose(output, torch.cat(alone), atol=1e-5)
        assert torch.allclose(written, cache.pool[0].flatten(0, 1)[slots], atol=1e-5)


@pytest.mark.parametrize("name", ["mistral-sliding", "qwen3", *MORE])
def test_tokens_are_those_of_transformers_as_batches_grow_and_shrink(
    tmp_path: Path, name: str
) -> None:
    checkpoint = make_checkpoint(name, tmp_path)
    rng = random.Random(5)
    prompts = [
        [rng.randrange(1, 257) for _ in range(rng.choice([1, 3, 17, 60]))] for _ in range(11)
    ]
    expected = generate(checkpoint, prompts, MAX_TOKENS)
    engine = LLMEngine(
        EngineConfig(
            model=checkpoint, device="cpu", block_size=4, num_gpu_blocks=400, max_num_seqs=9
        )
    )
    graphs = with_graphs(engine)
    # Two at first, the others one by one; some end earlier, so that each number comes up twice.
    groups = []
    for index, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS - index % 4 * 9)
        groups += engine.add_request(f"r{index}", prompt, params)
        for _ in range(index and 3):
            engine.step()
    drain(engine)
    assert tokens(groups) == [
        tuple(output[: MAX_TOKENS - index % 4 * 9]) for index, output in enumerate(expected)
    ]
    assert graphs.used >= {(size, 1) for size in (1, 2, 4, 8)}


SETTINGS: dict[str, dict[str, Any]] = {
    "recomputation": {"num_gpu_blocks": 30},
    "swap": {"num_gpu_blocks": 30, "preemption_mode": "swap", "num_cpu_blocks": 30},
    "several steps": {"num_scheduler_steps": 5},
    "prompt lookup": {"speculative": "ngram", "num_speculative_tokens": 3},
    "draft head": {"speculative": "draft-head", "num_speculative_tokens": 2},
    "chunks beside": {"max_num_batched_tokens": 12},
}


@pytest.mark.parametrize("kernels", [KERNELS, PAGED_ONLY], ids=["with prompts", "paged only"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_tokens_are_those_of_the_gathering_path(
    tmp_path: Path, settings: str, kernels: AttentionKernels
) -> None:
    checkpoint = add_draft_head(make_checkpoint("mistral-sliding", tmp_path))
    prompts = [[index + 1, *range(3, 3 + 4 * index), 7, 8, 7, 8] for index in range(6)]
    params = [
        greedy(24),
        SamplingParams(temperature=0.8, seed=3, top_k=20, logprobs=2, max_tokens=20),
        greedy(30, repetition_penalty=1.3),
        SamplingParams(n=2, seed=5, max_tokens=12),
        BeamSearchParams(beam_width=3, max_tokens=10),
    ]
    outputs = []
    for graphed in (False, True):
        engine = LLMEngine(
            EngineConfig(
                model=checkpoint,
                device="cpu",
                **(
                    {"block_size": 4, "max_num_seqs": 8, "num_gpu_blocks": 200} | SETTINGS[settings]
                ),
            )
        )
        graphs = with_graphs(engine, kernels) if graphed else None
        groups, records = run(engine, prompts, *params)
        outputs.append(tokens(groups))
        if "num_gpu_blocks" in SETTINGS[settings]:
            assert sum(len(record.preemptions) for record in records) >= 2
        if graphs is not None:
            assert graphs.used
    assert outputs[0] == outputs[1]


def test_steps_with_drafts_of_one_length_have_shapes_of_their_own(tmp_path: Path) -> None:
    checkpoint = add_draft_head(make_checkpoint("qwen2-sliding", tmp_path))
    prompts = [[index + 1, *range(3, 3 + 5 * index), 7] for index in range(5)]
    engine = LLMEngine(
        EngineConfig(
            model=checkpoint,
            device="cpu",
            block_size=4,
            num_gpu_blocks=200,
            speculative="draft-head",
            num_speculative_tokens=3,
        )
    )
    graphs = with_graphs(engine)
    groups, _ = run(engine, prompts, greedy(20))
    assert tokens(groups) == [tuple(output) for output in generate(checkpoint, prompts, 20)]
    # Five sequences are padded to eight.
    assert (8, 4) in graphs.used
