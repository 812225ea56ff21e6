"""Attention by torch's operators is attention over each sequence."""

import random

import pytest
import torch

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.platforms.torch_attention import TorchAttention, _runs
from engine_stub.spec_decode.speculation import Draft
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.input_batch import prepare_batch
from engine_stub.worker.step_inputs import PagedAttention
from seqtop.sequence import SamplingParams, SequenceData, SequenceGroupMetadata
from tests.support.attention_kernels import KERNELS


def random_groups(
    rng: random.Random, block_size: int, num_blocks: int
) -> tuple[list[SequenceGroupMetadata], dict[int, Draft]]:
    groups, drafts = [], {}
    free = list(range(num_blocks))
    rng.shuffle(free)
    for seq_id in range(rng.randint(1, 9)):
        length = rng.choice((rng.randint(1, 9), rng.randint(1, 60), 24))
        computed = rng.choice((0, length - 1, rng.randrange(length)))
        chunk = rng.choice((length - computed, rng.randint(1, length - computed)))
        data = SequenceData.from_seqs([rng.randrange(100) for _ in range(length)])
        data.update_num_computed_tokens(computed)
        draft = [1] * rng.choice((0, 0, 2)) if computed and chunk == length - computed == 1 else []
        if draft:
            drafts[seq_id] = Draft(draft)
        table = [free.pop() for _ in range(-(-(length + len(draft)) // block_size))]
        groups.append(
            SequenceGroupMetadata(
                request_id=f"r{seq_id}",
                is_prompt=chunk > 1,
                seq_data={seq_id: data},
                sampling_params=SamplingParams(temperature=0),
                block_tables={seq_id: table},
                do_sample=computed + chunk == length,
                token_chunk_size=chunk,
            )
        )
    return groups, drafts


@pytest.mark.parametrize("seed", range(80))
def test_random_steps(seed: int) -> None:
    """As by a loop over sequences."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    block_size, kv_heads, heads_per_kv = rng.choice((1, 4, 16)), rng.choice((1, 2)), 3
    # Large heads, so that some steps are gathered in several pieces.
    head_dim = rng.choice((8, 8, 256))
    num_blocks = 9 * -(-70 // block_size)
    cache = PagedKVCache(
        *(2, num_blocks, kv_heads, block_size, head_dim),
        device=torch.device("cpu"),
        dtype=torch.float32,
        windows=(rng.choice((None, None, 5, 30)), None),
    )
    pool = torch.randn(cache.pool.shape)
    groups, drafts = random_groups(rng, block_size, num_blocks)
    block_tables = DeviceBlockTables(9, num_blocks // 9, cache.pool.device)
    outputs = []
    for kernels in (TorchAttention().kernels, KERNELS):
        cache.pool.copy_(pool)
        cache.kernels = kernels
        batch = prepare_batch(groups, cache, block_tables, drafts)
        assert isinstance(batch.attend, PagedAttention)
        generator = torch.Generator().manual_seed(seed)
        num_tokens = len(batch.input_ids)
        for layer in (0, 1, 0):
            q = torch.randn(num_tokens, kv_heads * heads_per_kv, head_dim, generator=generator)
            kv = torch.randn(num_tokens, kv_heads, 2 * head_dim, generator=generator)
            cache.slot_rows[layer].index_copy_(0, batch.attend.slots, kv)
            outputs.append(batch.attend(layer, q, kv))
        outputs.append(cache.pool.clone())
    for output, expected in zip(outputs[:4], outputs[4:], strict=True):
        torch.testing.assert_close(output, expected)


def segments(counts: list[int], lengths: list[int], most_blocks: int = 1_000) -> list[int]:
    """The numbers of tiles of the segments, by the queries and the blocks of each tile."""
    return [end - start for start, end in _runs(counts, lengths, most_blocks)]


def test_a_segment_has_tiles_with_equally_many_queries() -> None:
    assert segments([1, 1, 3, 3, 1], [2] * 5) == [2, 2, 1]
    assert segments([], []) == []


def test_a_segment_has_tables_up_to_twice_as_long() -> None:
    assert segments([1] * 6, [3, 3, 5, 9, 15, 50]) == [3, 2, 1]
    assert segments([1] * 5, [5, 10, 4, 8, 9]) == [2, 2, 1]


def test_a_segment_fits_a_cpus_cache() -> None:
    assert segments([1] * 5, [10] * 5, most_blocks=20) == [2, 2, 1]
    assert segments([1] * 3, [10] * 3, most_blocks=5) == [1, 1, 1]
    assert segments([1] * 3, [10, 11, 10], most_blocks=31) == [2, 1]
