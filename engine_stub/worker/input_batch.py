"""The inputs of a step for the model: the tokens of all sequences, laid out one after another.

The order keeps the number of attention calls small on a CPU, where each takes neighbours with
equally many queries: new sequences of equal length side by side, then chunks of prompts whose
beginnings are in the pool, then decodes by their number of tokens (more than one with a draft) and
by the length of their block tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.model import AttentionFn
from engine_stub.platforms import to_device
from engine_stub.spec_decode.speculation import NO_DRAFT, Draft
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.step_graphs import StepGraph, StepGraphs
from engine_stub.worker.step_inputs import BatchRow, StepInputs
from seqtop.sequence import SequenceGroupMetadata


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
    attend: AttentionFn
    sampling_rows: list[BatchRow]
    sample_indices: Tensor
    prompt_logprobs_rows: list[tuple[int, BatchRow]]
    pooling_rows: list[tuple[int, BatchRow]]
    graph: StepGraph | None = None


def prepare_batch(
    groups: list[SequenceGroupMetadata],
    cache: PagedKVCache,
    block_tables: DeviceBlockTables,
    drafts: dict[int, Draft],
    graphs: StepGraphs | None = None,
) -> InputBatch:
    """Lays out a step's tokens, and makes every index tensor that the layers need.

    Args:
        groups: The groups of the step.
        cache: The pool that holds their keys and values.
        block_tables: Their tables on the device, to which what is new is written.
        drafts: By sequence id, the drafts of sequences that decode and have slots for them.
        graphs: The graphs to run steps with that are not too large.
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
        rows.sort(key=lambda row: -(-row.end // cache.block_size))

    inputs = StepInputs()
    sampling_rows: list[BatchRow] = []
    sample_indices: list[int] = []
    prompt_logprobs_rows: list[tuple[int, BatchRow]] = []
    pooling_rows: list[tuple[int, BatchRow]] = []
    for row in chain(*fresh.values(), chunks, *decodes.values()):
        if _wants_prompt_logprobs(row):
            prompt_logprobs_rows.append((len(inputs.input_ids), row))
        pools = row.group.pooling_params is not None
        if pools:
            pooling_rows.append((len(inputs.input_ids), row))
        inputs.add_tokens(row, cache.block_size)
        if row.group.do_sample and not pools:
            sampling_rows.append(row)
            num_tokens = len(inputs.input_ids)
            sample_indices += range(num_tokens - 1 - len(row.draft.token_ids), num_tokens)

    device = cache.pool.device
    graph = None
    prompts, tiled = [*chain(*fresh.values())], [*chunks, *chain(*decodes.values())]
    if graphs is not None:
        is_decodes = not prompts and not chunks and len(decodes) == 1
        graph = graphs.fitting(len(inputs.input_ids), next(iter(decodes)) if is_decodes else None)
    if graph is not None or cache.kernels.prompts is None:
        prompts, tiled = [], prompts + tiled
    # CUDA's kernel is compiled for two sizes: that of decodes, and that of anything else.
    has_chunks = bool(chunks) or (bool(fresh) and not prompts)
    most_queries = cache.tile_size if has_chunks else max(decodes, default=1)
    tile_size = graph.tile_size if graph else min(cache.tile_size, most_queries)
    inputs.add_tiles(prompts, tiled, tile_size, block_tables)
    block_tables.write()
    step = graph.load(inputs) if graph else inputs.to_device(cache, block_tables)
    input_ids, positions, attend = step
    num_tokens = len(inputs.input_ids)
    input_ids, positions = input_ids[:num_tokens], positions[:num_tokens]
    return InputBatch(
        input_ids=input_ids,
        positions=positions,
        attend=attend,
        sampling_rows=sampling_rows,
        sample_indices=to_device(sample_indices, device),
        prompt_logprobs_rows=prompt_logprobs_rows,
        pooling_rows=pooling_rows,
        graph=graph,
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
            # The size of a first chunk includes the tokens from the prefix cache.
            start = max(computed, num_cached)
            table = group.block_tables[seq_id]
            # By position, in two thirds of the time.
            yield BatchRow(group_index, group, seq_id, data, table, start, end, draft)
