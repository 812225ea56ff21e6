"""Steps by attention kernels, padded to fixed shapes, give the same tokens; nothing is replayed."""

from pathlib import Path

import pytest
import torch

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.stages import Stage
from engine_stub.platforms.torch_attention import TorchAttention
from engine_stub.worker.decode_graphs import DecodeGraph, DecodeGraphs, batch_sizes
from engine_stub.worker.step_inputs import StepInputs
from seqtop.sequence import IntermediateTensors
from tests.support.attention_kernels import KERNELS

CPU = torch.device("cpu")


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
