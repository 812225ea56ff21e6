"""The layout of a step's sequences for attention."""

import torch

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.input_batch import InputBatch, prepare_batch
from engine_stub.worker.step_inputs import PagedAttention
from seqtop.sequence import SamplingParams, SequenceData, SequenceGroupMetadata

BLOCK_SIZE = 4
WIDTH = 64


def prepare(groups: list[SequenceGroupMetadata]) -> InputBatch:
    cpu = torch.device("cpu")
    cache = PagedKVCache(2, 4096, 2, BLOCK_SIZE, 8, device=cpu, dtype=torch.float32)
    return prepare_batch(groups, cache, DeviceBlockTables(6, WIDTH, cpu), {})


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


def attention_of(batch: InputBatch) -> PagedAttention:
    assert isinstance(batch.attend, PagedAttention)
    return batch.attend


def test_new_prompts_of_equal_length_are_side_by_side() -> None:
    batch = prepare([group(0, 5, 0, 5), group(1, 7, 0, 7), group(2, 5, 0, 5)])
    attention = attention_of(batch)
    assert attention.prompt_lengths == [5, 5, 7]
    assert len(attention.tiles.first_tokens) == 0
    assert batch.input_ids.tolist() == [*range(5), *range(200, 205), *range(100, 107)]
    assert batch.positions.tolist() == [*range(5), *range(5), *range(7)]
    assert [row.group_index for row in batch.sampling_rows] == [0, 2, 1]
    assert batch.sample_indices.tolist() == [4, 9, 16]


def test_a_chunk_reads_the_pool_and_does_not_sample_before_its_end() -> None:
    batch = prepare([group(0, 20, 8, 6), group(1, 9, 8, 1)])
    attention = attention_of(batch)
    assert attention.prompt_lengths == []
    assert attention.tiles.first_tokens.tolist() == [0, 6]
    assert attention.tiles.num_queries.tolist() == [6, 1]
    assert [row.group_index for row in batch.sampling_rows] == [1]
    assert attention.tiles.table_starts.tolist() == [0, WIDTH]
    tables = attention.tiles.block_tables
    assert tables[:5].tolist() == [0, 1, 2, 3, 4]
    assert tables[WIDTH : WIDTH + 3].tolist() == [500, 501, 502]


def test_decodes_are_in_the_order_of_their_tables_lengths() -> None:
    lengths = [200, 9, 17, 60, 33, 10]
    groups = [group(index, length, length - 1, 1) for index, length in enumerate(lengths)]
    batch = prepare(groups)
    assert [row.group_index for row in batch.sampling_rows] == [1, 5, 2, 4, 3, 0]
    tiles = attention_of(batch).tiles
    assert tiles.num_queries.tolist() == [1] * 6
    assert tiles.table_starts.tolist() == [row * WIDTH for row in range(6)]
