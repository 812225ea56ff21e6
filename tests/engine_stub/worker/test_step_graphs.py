"""Steps by attention kernels, padded to fixed shapes, give the same tokens; nothing is replayed."""

from pathlib import Path

import pytest
import torch

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.stages import Stage
from engine_stub.platforms.torch_attention import TorchAttention
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.step_graphs import StepGraph, StepGraphs, batch_sizes, token_sizes
from engine_stub.worker.step_inputs import StepInputs
from seqtop.sequence import IntermediateTensors
from tests.support.attention_kernels import KERNELS

CPU = torch.device("cpu")
WIDTH = 4


def test_shapes() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(3) == [1, 2, 4]
    assert batch_sizes(8) == [1, 2, 4, 8]
    assert batch_sizes(20) == [1, 2, 4, 8, 16, 32]
    assert token_sizes(4) == [16]
    assert token_sizes(64) == [16, 32, 64]
    assert token_sizes(65) == [16, 32, 64, 128]
    assert token_sizes(8192) == [16, 32, 64, 128, 256, 512]


def test_the_smallest_graph_that_fits(tiny_model: Path) -> None:
    model = load_model(tiny_model, device=CPU, dtype=torch.float32)
    cache = PagedKVCache(2, 8, 2, 4, 16, device=CPU, dtype=torch.float32)
    graphs = StepGraphs(model, cache, DeviceBlockTables(5, 8, CPU), 5, 40, num_draft_tokens=2)
    # The others find room in the memory of the first one captured.
    assert [*graphs.others] == [64, 32, 16]
    assert [*graphs.decodes] == [(size, tokens) for tokens in (3, 1) for size in (8, 4, 2, 1)]
    assert graphs.fitting(3, 1) is graphs.fitting(4, 1) is graphs.decodes[4, 1]
    assert graphs.fitting(9, 3) is graphs.decodes[4, 3]
    assert graphs.fitting(6, 2) is graphs.fitting(16, None) is graphs.others[16]
    assert graphs.fitting(17, None) is graphs.others[32]
    assert graphs.fitting(65, None) is None


def step_inputs(
    input_ids: list[int], positions: list[int], slots: list[int], starts: list[int]
) -> StepInputs:
    """One query of each sequence."""
    first_tokens = [*range(len(starts))]
    return StepInputs(input_ids, positions, slots, [], 1, first_tokens, [1] * len(starts), starts)


@pytest.mark.parametrize("num_queries", [1, None], ids=["decodes", "others"])
@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_steps_own_slots_and_the_scratch_block_are_written(
    tiny_model: Path, rank: int, num_queries: int | None
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
    block_tables = DeviceBlockTables(8, WIDTH, CPU)
    starts = [block_tables.place(seq_id, table) for seq_id, table in enumerate(tables)]
    block_tables.write()
    graph = StepGraphs(model, cache, block_tables, 8, 64).fitting(3, num_queries)
    assert isinstance(graph, StepGraph)
    with torch.inference_mode():
        # Left from a larger step.
        graph.load(step_inputs([1, 2, 3, 4], [9, 9, 9, 9], [25] * 4, [0] * 4))
        graph.load(step_inputs(input_ids, positions, slots, starts))
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
        for row, start in enumerate(starts):
            own = step_inputs([input_ids[row]], [positions[row]], [slots[row]], [start])
            tensors = None
            if received is not None:
                tensors = IntermediateTensors({"hidden_states": hidden[row : row + 1]})
            alone.append(model(*own.to_device(cache, block_tables), tensors))
        assert torch.allclose(output, torch.cat(alone), atol=1e-5)
        assert torch.allclose(written, cache.pool[0].flatten(0, 1)[slots], atol=1e-5)
