"""How a step's sequences are laid out for attention."""

import torch

from engine_stub.model_executor.attention import AttentionSegment, PagedAttention
from engine_stub.model_executor.kv_cache import PagedKVCache
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


def segments_of(batch: InputBatch) -> list[AttentionSegment]:
    attend = batch.attend
    assert isinstance(attend, PagedAttention)
    return attend.segments


def segments(batch: InputBatch) -> list[tuple[int, int, bool]]:
    """Tokens, sequences, and whether anything is read from the pool."""
    return [
        (segment.end - segment.start, segment.num_seqs, segment.context is not None)
        for segment in segments_of(batch)
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
    assert segments_of(batch)[0].context.blocks.tolist() == [0, 1, 2, 3]


def test_decodes_share_a_segment_with_tables_up_to_twice_as_long() -> None:
    lengths = [200, 9, 17, 60, 33, 10]
    groups = [group(index, length, length - 1, 1) for index, length in enumerate(lengths)]
    batch = prepare_batch(groups, make_cache(), {})
    assert [row.group_index for row in batch.sampling_rows] == [1, 5, 2, 4, 3, 0]
    assert segments(batch) == [(3, 3, True), (2, 2, True), (1, 1, True)]
    for segment in segments_of(batch):
        assert segment.context.keys.shape[0] == segment.num_seqs


def test_a_segment_of_decodes_fits_a_cpus_cache() -> None:
    # 100 tokens, 2 heads of 512 numbers, keys and values: 800 KiB a sequence.
    groups = [group(index, 100, 99, 1) for index in range(5)]
    batch = prepare_batch(groups, make_cache(head_dim=512), {})
    assert [segment.num_seqs for segment in segments_of(batch)] == [2, 2, 1]
