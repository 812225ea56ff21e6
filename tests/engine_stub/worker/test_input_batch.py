"""How a step's sequences are laid out for attention."""

from random import Random

import pytest
import torch

from engine_stub.model_executor.attention import DecodeContext, PagedKVCache
from engine_stub.model_executor.cpu.decode_cache import DecodeCache
from engine_stub.worker.input_batch import InputBatch, prepare_batch
from seqtop.sequence import SamplingParams, SequenceData, SequenceGroupMetadata

BLOCK_SIZE = 4


def make_cache(head_dim: int = 8) -> PagedKVCache:
    cpu = torch.device("cpu")
    return PagedKVCache(2, 4096, 2, BLOCK_SIZE, head_dim, device=cpu, dtype=torch.float32)


def group(seq_id: int, length: int, computed: int, chunk: int) -> SequenceGroupMetadata:
    data = SequenceData.from_seqs([100 * seq_id + i for i in range(length)])
    data.update_num_computed_tokens(computed)
    num_blocks = -(-length // BLOCK_SIZE)
    return SequenceGroupMetadata(
        request_id=f"r{seq_id}",
        is_prompt=chunk > 1,
        seq_data={seq_id: data},
        sampling_params=SamplingParams(temperature=0),
        block_tables={seq_id: [500 * seq_id + i for i in range(num_blocks)]},
        do_sample=computed + chunk == length,
        token_chunk_size=chunk,
    )


def segments(batch: InputBatch) -> list[tuple[int, int, bool]]:
    """Tokens, sequences, and whether anything is read from the pool."""
    return [
        (each.end - each.start, each.num_seqs, each.context is not None)
        for each in batch.attend.segments
    ]


def test_new_prompts_of_equal_length_share_a_segment() -> None:
    batch = prepare_batch(
        [group(0, 5, 0, 5), group(1, 7, 0, 7), group(2, 5, 0, 5)], make_cache(), {}
    )
    assert segments(batch) == [(10, 2, False), (7, 1, False)]
    assert batch.input_ids.tolist() == [*range(5), *range(200, 205), *range(100, 107)]
    assert batch.positions.tolist() == [*range(5), *range(5), *range(7)]
    assert [row.group_index for row in batch.sampling_rows] == [0, 2, 1]
    assert batch.sample_indices.tolist() == [4, 9, 16]


def test_a_chunk_reads_the_pool_and_does_not_sample_before_its_end() -> None:
    batch = prepare_batch([group(0, 20, 8, 6), group(1, 9, 8, 1)], make_cache(), {})
    assert segments(batch) == [(6, 1, True), (1, 1, True)]
    assert [row.group_index for row in batch.sampling_rows] == [1]
    # Only the blocks up to the chunk's end are read: 14 tokens, 4 blocks.
    assert batch.attend.segments[0].context.blocks.tolist() == [0, 1, 2, 3]


def test_decodes_share_a_segment_with_tables_up_to_twice_as_long() -> None:
    lengths = [200, 9, 17, 60, 33, 10]
    groups = [group(index, length, length - 1, 1) for index, length in enumerate(lengths)]
    batch = prepare_batch(groups, make_cache(), {})
    assert [row.group_index for row in batch.sampling_rows] == [1, 5, 2, 4, 3, 0]
    assert segments(batch) == [(3, 3, True), (2, 2, True), (1, 1, True)]
    for segment in batch.attend.segments:
        assert segment.context.keys.shape[0] == segment.num_seqs


def test_a_segment_of_decodes_fits_a_cpus_cache() -> None:
    # 100 tokens, 2 heads of 512 numbers, keys and values: 800 KiB a sequence.
    groups = [group(index, 100, 99, 1) for index in range(5)]
    batch = prepare_batch(groups, make_cache(head_dim=512), {})
    assert [each.num_seqs for each in batch.attend.segments] == [2, 2, 1]


def advanced(groups: list[SequenceGroupMetadata]) -> None:
    """Let each group have computed its last token and sampled another."""
    for each in groups:
        ((seq_id, data),) = each.seq_data.items()
        data.update_num_computed_tokens(1)
        data.append_token_id(7, 0.0)
        table = each.block_tables[seq_id]
        if data.get_len() > len(table) * BLOCK_SIZE:
            table.append(table[-1] + 1)


def write(cache: PagedKVCache, batch: InputBatch) -> torch.Tensor:
    """Attend in both layers with random inputs that the step's first position decides."""
    num_tokens = len(batch.input_ids)
    random = torch.Generator().manual_seed(int(batch.positions.sum()))
    outputs = []
    for layer in range(2):
        q = torch.randn(num_tokens, 4, cache.head_dim, generator=random)
        kv = torch.randn(num_tokens, 2, 2 * cache.head_dim, generator=random)
        # By sequence, whatever order the batch is in.
        order = torch.tensor([row.group_index for row in batch.sampling_rows])
        out = batch.attend(layer, q[order], kv[order])
        outputs.append(torch.empty_like(out).index_copy(0, order, out))
    return torch.stack(outputs)


@pytest.mark.parametrize("window", [None, 6])
def test_decodes_attend_to_a_copy_of_the_same(window: int | None) -> None:
    cpu = torch.device("cpu")
    caches = [
        PagedKVCache(
            2, 4096, 2, BLOCK_SIZE, 8, device=cpu, dtype=torch.float32, windows=(None, window)
        )
        for _ in range(2)
    ]
    for cache in caches:
        cache.pool.normal_(generator=torch.Generator().manual_seed(1))
    decode_cache = DecodeCache(caches[0])
    lengths = [9, 40, 6, 640, 33, 120, 11]
    groups = [group(index, length, length - 1, 1) for index, length in enumerate(lengths)]
    random = Random(2)
    some = groups[:4]
    # More steps than a copy has room for, with sequences that come, pause, and come back.
    for step in range(150):
        if step % 4 == 3:
            some = random.sample(groups, random.randint(1, len(groups)))
        with_copy = prepare_batch(some, caches[0], {}, decode_cache)
        plain = prepare_batch(some, caches[1], {})
        torch.testing.assert_close(write(caches[0], with_copy), write(caches[1], plain))
        assert all(isinstance(each.context, DecodeContext) for each in with_copy.attend.segments)
        advanced(some)
    assert torch.equal(caches[0].pool, caches[1].pool)


def test_a_sequence_that_leaves_or_joins_moves_no_other_from_its_place() -> None:
    cache = make_cache()
    decode_cache = DecodeCache(cache)
    groups = [group(index, 50 + index, 49 + index, 1) for index in range(5)]

    def seq_ids(some: list[SequenceGroupMetadata]) -> list[int]:
        batch = prepare_batch(some, cache, {}, decode_cache)
        advanced(some)
        return [row.seq_id for row in batch.sampling_rows]

    assert seq_ids(groups[:4]) == [0, 1, 2, 3]
    # The last one takes the place that is free, and who comes goes behind.
    assert seq_ids([groups[0], groups[2], groups[3]]) == [0, 3, 2]
    assert seq_ids([groups[0], groups[2], groups[3], groups[4]]) == [0, 3, 2, 4]


def test_a_copy_is_never_larger_than_the_pool() -> None:
    cpu = torch.device("cpu")
    cache = PagedKVCache(2, 16, 2, BLOCK_SIZE, 8, device=cpu, dtype=torch.float32)
    decode_cache = DecodeCache(cache)
    groups = [group(0, 58, 57, 1)]
    for _ in range(2):
        batch = prepare_batch(groups, cache, {}, decode_cache)
        assert not isinstance(batch.attend.segments[0].context, DecodeContext)
        advanced(groups)
