"""Steps in which the same sequences decode as in the step before, and nothing else happens.

Most steps are. As the sequences' keys and values lie side by side in the decode cache, all that has
to be worked out for the next one is which tokens come. Which slots they go to is put down, for the
pool to get them in the end.
"""

from __future__ import annotations

from operator import is_

from engine_stub.model_executor.attention import NO_SLOTS, DecodeContext, PagedAttention
from engine_stub.model_executor.cpu.decode_cache import DecodeCache
from engine_stub.platforms.cuda import to_device
from engine_stub.worker.batch_row import BatchRow
from engine_stub.worker.input_batch import InputBatch
from seqtop.sequence import SequenceGroupMetadata


class DecodeRun:
    """A batch of decodes that is taken on from step to step, as long as it stays the same one.

    Make one with `begin`.
    """

    def __init__(
        self, groups: list[SequenceGroupMetadata], batch: InputBatch, decode_cache: DecodeCache
    ) -> None:
        self._groups = groups
        self._batch = batch
        self._rows: list[BatchRow] = batch.sampling_rows
        self._ends = [row.end for row in self._rows]
        """Of each row, how many tokens it has computed after the step."""
        self._decode_cache = decode_cache

    @staticmethod
    def begin(
        groups: list[SequenceGroupMetadata], batch: InputBatch, decode_cache: DecodeCache | None
    ) -> DecodeRun | None:
        """A run that begins with the step of `batch`, if one can."""
        if (
            decode_cache is None
            or len(batch.sampling_rows) < len(batch.input_ids)
            or not all(isinstance(each.context, DecodeContext) for each in batch.attend.segments)
        ):
            return None
        return DecodeRun(groups, batch, decode_cache)

    def next(self, groups: list[SequenceGroupMetadata]) -> InputBatch | None:
        """The inputs of the next step; None if it is another one than this run's."""
        if len(groups) != len(self._groups) or not all(map(is_, groups, self._groups)):
            return None
        cache = self._batch.attend.cache
        token_ids: list[int] = []
        slots: list[int] = []
        block_size = cache.block_size
        for row, position in zip(self._rows, self._ends, strict=True):
            data, group = row.data, row.group
            is_decode = group.do_sample and group.token_chunk_size == 1
            if not is_decode or data.get_num_computed_tokens() != position:
                return None
            token_ids.append(data.get_last_token_id())
            block = group.block_tables[row.seq_id][position // block_size]
            slots.append(block * block_size + position % block_size)
        if not self._decode_cache.advance(slots):
            return None
        device = self._batch.input_ids.device
        positions = to_device(self._ends, device)
        self._ends = [end + 1 for end in self._ends]
        self._batch = InputBatch(
            input_ids=to_device(token_ids, device),
            positions=positions,
            attend=PagedAttention(cache, NO_SLOTS, self._decode_cache.segments(start=0)),
            sampling_rows=self._rows,
            sample_indices=self._batch.sample_indices,
            prompt_logprobs_rows=[],
            pooling_rows=[],
        )
        return self._batch
