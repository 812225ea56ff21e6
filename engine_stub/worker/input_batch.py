"""The inputs of a step for the model: the tokens of all sequences, laid out one after another.

The order keeps the number of attention calls small: new sequences of equal length side by side,
then chunks of prompts whose beginnings are in the pool, then decodes by their number of tokens
(more than one with a draft) and by the length of their block tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from engine_stub.model_executor.attention import AttentionSegment, PagedAttention, PagedKVCache
from engine_stub.platforms import platform_of, to_device
from engine_stub.spec_decode.speculation import NO_DRAFT, Draft
from engine_stub.worker.batch_row import BatchRow
from engine_stub.worker.decode_graphs import DecodeGraph, DecodeGraphs
from seqtop.sequence import SequenceGroupMetadata

# In a segment of decodes, the longest table has at most this times the blocks of the shortest.
_MOST_PADDING = 2


@dataclass(frozen=True, slots=True)
class InputBatch:
    """The inputs of a step, on the device.

    Attributes:
        input_ids: The tokens, ``[T]`` int64.
        positions: Each token's index in its sequence, ``[T]`` int64.
        attend: The attention of the step.
        sampling_rows: The rows that sample.
        sample_indices: For each of them, the index of its last token and those of its draft.
        prompt_logprobs_rows: The rows whose requests ask for log probabilities of prompt tokens,
            each with the index of its first token.
        pooling_rows: The rows whose hidden states are pooled, likewise.
        graph: The graph that the inputs were loaded into; None if the step runs without one.
    """

    input_ids: Tensor
    positions: Tensor
    attend: PagedAttention
    sampling_rows: list[BatchRow]
    sample_indices: Tensor
    prompt_logprobs_rows: list[tuple[int, BatchRow]]
    pooling_rows: list[tuple[int, BatchRow]]
    graph: DecodeGraph | None = None


def prepare_batch(
    groups: list[SequenceGroupMetadata],
    cache: PagedKVCache,
    drafts: dict[int, Draft],
    graphs: DecodeGraphs | None = None,
) -> InputBatch:
    """Lays out a step's tokens, and makes every index tensor that the layers need.

    Args:
        groups: The groups of the step.
        cache: The pool that holds their keys and values.
        drafts: By sequence id, the drafts of sequences that decode and have slots for them.
        graphs: The graphs to run a step with that consists of decodes of equally many tokens.
    """
    fresh: defaultdict[int, list[BatchRow]] = defaultdict(list)
    chunks: list[BatchRow] = []
    decodes: defaultdict[int, list[BatchRow]] = defaultdict(list)
    for row in _rows(groups, cache.block_size, drafts):
        if row.start == 0:
            fresh[row.end].append(row)
        elif row.end - row.start > 1 and row.draft is NO_DRAFT:
            chunks.append(row)
        else:
            decodes[row.end - row.start].append(row)
    for rows in decodes.values():
        rows.sort(key=lambda row: len(row.block_table))

    input_ids: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    sampling_rows: list[BatchRow] = []
    sample_indices: list[int] = []
    prompt_logprobs_rows: list[tuple[int, BatchRow]] = []
    pooling_rows: list[tuple[int, BatchRow]] = []
    for row in chain(*fresh.values(), chunks, *decodes.values()):
        own_positions = range(row.start, row.end)
        if _wants_prompt_logprobs(row):
            prompt_logprobs_rows.append((len(input_ids), row))
        pools = row.group.pooling_params is not None
        if pools:
            pooling_rows.append((len(input_ids), row))
        input_ids += row.token_ids
        positions += own_positions
        blocks += [row.block_table[position // cache.block_size] for position in own_positions]
        if row.group.do_sample and not pools:
            sampling_rows.append(row)
            num_last = 1 + len(row.draft.token_ids)
            sample_indices += range(len(input_ids) - num_last, len(input_ids))

    device = cache.pool.device
    if graphs is not None and not fresh and not chunks and len(decodes) == 1:
        ((num_queries, rows),) = decodes.items()
        tables = [row.block_table for row in rows]
        if graph := graphs.fitting(len(tables), max(map(len, tables)), num_queries):
            graph.load(input_ids, positions, tables)
            return InputBatch(
                input_ids=graph.input_ids[: len(input_ids)],
                positions=graph.positions[: len(input_ids)],
                attend=graph.attend,
                sampling_rows=sampling_rows,
                sample_indices=to_device(sample_indices, device),
                prompt_logprobs_rows=prompt_logprobs_rows,
                pooling_rows=pooling_rows,
                graph=graph,
            )
    all_positions = to_device(positions, device)
    slots = to_device(blocks, device) * cache.block_size + all_positions % cache.block_size
    segments = _prompt_segments([*fresh.values()], chunks, all_positions, cache)
    for rows in decodes.values():
        start = segments[-1].end if segments else 0
        segments += _decode_segments(rows, start, all_positions, cache)
    return InputBatch(
        input_ids=to_device(input_ids, device),
        positions=all_positions,
        attend=PagedAttention(cache, slots, segments),
        sampling_rows=sampling_rows,
        sample_indices=to_device(sample_indices, device),
        prompt_logprobs_rows=prompt_logprobs_rows,
        pooling_rows=pooling_rows,
    )


def _wants_prompt_logprobs(row: BatchRow) -> bool:
    """Tells whether log probabilities of prompt tokens have to be computed for a row."""
    params = row.group.sampling_params
    return (
        params is not None
        and params.prompt_logprobs is not None
        and row.start < row.data.get_prompt_len() - 1
    )


def _rows(
    groups: list[SequenceGroupMetadata], block_size: int, drafts: dict[int, Draft]
) -> Iterator[BatchRow]:
    for group_index, group in enumerate(groups):
        num_cached = len(group.computed_block_nums or ()) * block_size
        for seq_id, data in group.seq_data.items():
            assert group.token_chunk_size is not None
            computed = data.get_num_computed_tokens()
            draft = drafts.get(seq_id, NO_DRAFT)
            end = computed + group.token_chunk_size + len(draft.token_ids)
            yield BatchRow(
                group_index=group_index,
                group=group,
                seq_id=seq_id,
                data=data,
                block_table=group.block_tables[seq_id][: -(-end // block_size)],
                # The size of a first chunk includes the tokens from the prefix cache.
                start=max(computed, num_cached),
                end=end,
                draft=draft,
            )


def _prompt_segments(
    fresh: list[list[BatchRow]], chunks: list[BatchRow], positions: Tensor, cache: PagedKVCache
) -> list[AttentionSegment]:
    """Returns the segments of a step's prompts, laid out in the order of the arguments."""
    segments: list[AttentionSegment] = []
    start = 0
    for rows in fresh:
        end = start + len(rows) * rows[0].end
        segments.append(AttentionSegment(start, end, len(rows), None))
        start = end
    for row in chunks:
        end = start + row.end - row.start
        (context,) = cache.contexts([row.block_table], positions[None, start:end], [1])
        segments.append(AttentionSegment(start, end, 1, context))
        start = end
    return segments


def _decode_segments(
    rows: list[BatchRow], start: int, positions: Tensor, cache: PagedKVCache
) -> list[AttentionSegment]:
    """Returns the segments of decodes of equally many tokens, from the step's token `start` on."""
    segments: list[AttentionSegment] = []
    tables = [row.block_table for row in rows]
    sizes = segment_sizes(tables, cache)
    num_queries = rows[0].end - rows[0].start
    own_positions = positions[start : start + len(rows) * num_queries].view(len(rows), -1)
    contexts = cache.contexts(tables, own_positions, sizes)
    for size, context in zip(sizes, contexts, strict=True):
        end = start + size * num_queries
        segments.append(AttentionSegment(start, end, size, context))
        start = end
    return segments


def segment_sizes(tables: list[list[int]], cache: PagedKVCache) -> list[int]:
    """Returns the number of decodes in each segment, for tables in order of length."""
    most_blocks = platform_of(cache.pool.device).segment_bytes // cache.pool[0, 0].nbytes
    sizes: list[int] = []
    shortest = 0
    for table in tables:
        if (
            sizes
            and (sizes[-1] + 1) * len(table) <= most_blocks
            and len(table) <= _MOST_PADDING * shortest
        ):
            sizes[-1] += 1
        else:
            sizes.append(1)
            shortest = len(table)
    return sizes
