"""From the metadata of a step's groups to the tokens sampled for them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from time import perf_counter

import torch
from torch import Tensor

from engine_stub.attention import PagedAttention, PagedKVCache, Segment
from engine_stub.model import Decoder
from engine_stub.sampler import Sampler, SamplingRequest
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    SamplingParams,
    SequenceData,
    SequenceGroupMetadata,
    SequenceOutput,
)

# Tables up to this many blocks share a segment; longer ones share it up to the next power of two.
_SMALLEST_BUCKET = 8


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What a step gave.

    Attributes:
        outputs: One per group, in the order of the request; without samples where a group did
            not sample.
        model_forward_time: Seconds the forward pass took.
    """

    outputs: list[CompletionSequenceGroupOutput]
    model_forward_time: float


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence's part in the step.

    Attributes:
        index: Position of its group in the request.
        start: Its first token to compute: those before have their KV entries.
        end: The token after the last one to compute.
    """

    index: int
    group: SequenceGroupMetadata
    seq_id: int
    data: SequenceData
    block_table: list[int]
    start: int
    end: int

    @property
    def segment_key(self) -> tuple[int, int]:
        """Rows of equal keys share a segment: number of queries, and bucket of table length."""
        if self.start == 0:
            return self.end, 0
        bucket = max(len(self.block_table), _SMALLEST_BUCKET)
        return self.end - self.start, (bucket - 1).bit_length()


@dataclass(frozen=True, slots=True)
class _Batch:
    """A step's inputs on the device; `sampling_rows` are in the order of `sample_indices`."""

    input_ids: Tensor  # [T]
    positions: Tensor  # [T]
    attend: PagedAttention
    sampling_rows: list[_Row]
    sample_indices: Tensor  # [number of sampling_rows]: each one's last token


class ModelRunner:
    """Runs a decoder over batches whose keys and values live in a paged pool.

    Args:
        model: On the device and in the dtype to run with.
        cache: The pool.
        seed: For requests without a seed of their own.
    """

    def __init__(self, model: Decoder, cache: PagedKVCache, seed: int) -> None:
        self.model = model
        self.cache = cache
        self.device = cache.pool.device
        self.sampler = Sampler(torch.Generator(self.device).manual_seed(seed))
        self._generators: dict[str, torch.Generator] = {}

    def forget(self, request_id: str) -> None:
        """Drop what is kept between steps for a request, if anything."""
        self._generators.pop(request_id, None)

    @torch.inference_mode()
    def execute_model(self, groups: list[SequenceGroupMetadata]) -> ModelOutput:
        """Compute each group's chunk, and sample for those that are due."""
        outputs = [CompletionSequenceGroupOutput([], None) for _ in groups]
        if not groups:
            return ModelOutput(outputs, 0.0)
        batch = self._prepare(groups)
        begin = perf_counter()
        hidden = self.model(batch.input_ids, batch.positions, batch.attend)
        forward_time = perf_counter() - begin
        if batch.sampling_rows:
            logits = self.model.compute_logits(hidden[batch.sample_indices])
            requests = [self._sampling_request(row) for row in batch.sampling_rows]
            for row, sample in zip(
                batch.sampling_rows, self.sampler(logits, requests), strict=True
            ):
                outputs[row.index].samples.append(
                    SequenceOutput(row.seq_id, sample.token_id, sample.logprobs)
                )
        return ModelOutput(outputs, forward_time)

    def _prepare(self, groups: list[SequenceGroupMetadata]) -> _Batch:
        """Lay out the step's tokens by segment, and make every index the layers need."""
        by_key: defaultdict[tuple[int, int], list[_Row]] = defaultdict(list)
        for row in self._rows(groups):
            by_key[row.segment_key].append(row)
        segments: list[Segment] = []
        input_ids: list[int] = []
        sample_indices: list[int] = []
        sampling_rows: list[_Row] = []
        positions, blocks = [], []
        for (num_queries, _), rows in by_key.items():
            start = len(input_ids)
            for row in rows:
                input_ids += row.data.get_token_ids()[row.start : row.end]
                if row.group.do_sample:
                    sampling_rows.append(row)
                    sample_indices.append(len(input_ids) - 1)
            tables = self._block_tables(rows)
            starts = torch.tensor([row.start for row in rows])
            seg_positions = starts[:, None] + torch.arange(num_queries)
            positions.append(seg_positions.flatten())
            blocks.append(tables.gather(1, seg_positions // self.cache.block_size).flatten())
            segments.append(self._segment(start, len(input_ids), rows, tables, seg_positions))

        flat_positions = torch.cat(positions)
        write_rows = self.cache.write_rows(
            torch.cat(blocks), flat_positions % self.cache.block_size
        )
        return _Batch(
            input_ids=torch.tensor(input_ids).to(self.device),
            positions=flat_positions.to(self.device),
            attend=PagedAttention(self.cache, write_rows.to(self.device), segments),
            sampling_rows=sampling_rows,
            sample_indices=torch.tensor(sample_indices, dtype=torch.int64).to(self.device),
        )

    def _rows(self, groups: list[SequenceGroupMetadata]) -> list[_Row]:
        rows = []
        for index, group in enumerate(groups):
            num_cached = len(group.computed_block_nums or ()) * self.cache.block_size
            for seq_id, data in group.seq_data.items():
                computed = data.get_num_computed_tokens()
                assert group.token_chunk_size is not None
                rows.append(
                    _Row(
                        index=index,
                        group=group,
                        seq_id=seq_id,
                        data=data,
                        block_table=group.block_tables[seq_id],
                        # A first chunk counts the tokens of the prefix cache, too.
                        start=max(computed, num_cached),
                        end=computed + group.token_chunk_size,
                    )
                )
        return rows

    def _block_tables(self, rows: list[_Row]) -> Tensor:
        """The rows' block tables, ``[rows, blocks]``, padded with block 0."""
        width = max(len(row.block_table) for row in rows)
        padded = (row.block_table + [0] * (width - len(row.block_table)) for row in rows)
        return torch.tensor(list(chain.from_iterable(padded))).view(len(rows), width)

    def _segment(
        self, start: int, end: int, rows: list[_Row], tables: Tensor, positions: Tensor
    ) -> Segment:
        if rows[0].start == 0:
            return Segment(start, end, len(rows), None, None)
        keys = torch.arange(tables.shape[1] * self.cache.block_size)
        hidden = keys > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.cache.pool.dtype)
        mask.masked_fill_(hidden, -torch.inf)
        return Segment(
            start,
            end,
            len(rows),
            self.cache.read_rows(tables).to(self.device),
            mask.to(self.device),
        )

    def _sampling_request(self, row: _Row) -> SamplingRequest:
        params = row.group.sampling_params
        assert params is not None
        return SamplingRequest(params, row.data, self._generator(row.group.request_id, params))

    def _generator(self, request_id: str, params: SamplingParams) -> torch.Generator | None:
        """The request's random numbers; they go on where they were after a preemption."""
        if params.seed is None:
            return None
        if request_id not in self._generators:
            self._generators[request_id] = torch.Generator(self.device).manual_seed(params.seed)
        return self._generators[request_id]
