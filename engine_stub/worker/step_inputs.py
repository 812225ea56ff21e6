"""The rows of a step, and the inputs for attention kernels, which go to the device in one copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.platforms import to_device
from engine_stub.platforms.interface import KVSlots, QueryTiles
from engine_stub.spec_decode.speculation import Draft
from engine_stub.worker.block_tables import DeviceBlockTables
from seqtop.sequence import SequenceData, SequenceGroupMetadata


@dataclass(slots=True)
class BatchRow:
    """A sequence's part in a step.

    Attributes:
        group_index: The position of its group in the request.
        block_table: All its blocks.
        start: Its first token to compute; the KV entries of those before are in the pool.
        end: The token after the last one to compute, the draft included.
        draft: The tokens to verify after the sequence's own; may be empty.
    """

    group_index: int
    group: SequenceGroupMetadata
    seq_id: int
    data: SequenceData
    block_table: list[int]
    start: int
    end: int
    draft: Draft

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute."""
        return self.data.get_token_ids()[self.start : self.end] + self.draft.token_ids


@dataclass(slots=True)
class StepInputs:
    """The inputs of a step, on the host.

    Attributes:
        input_ids: The tokens of all rows, one row after another.
        positions: Each token's index in its sequence.
        slots: Each token's slot of the pool.
        prompt_lengths: The lengths of the prompts at the beginning that are in no tile.
        tile_size, first_tokens, num_queries, table_starts: See `QueryTiles`.
    """

    input_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    prompt_lengths: list[int] = field(default_factory=list)
    tile_size: int = 1
    first_tokens: list[int] = field(default_factory=list)
    num_queries: list[int] = field(default_factory=list)
    table_starts: list[int] = field(default_factory=list)

    def add_tokens(self, row: BatchRow, block_size: int) -> None:
        """Appends the tokens of a row."""
        own_positions = range(row.start, row.end)
        table = row.block_table
        self.input_ids += row.token_ids
        self.positions += own_positions
        self.slots += [
            table[position // block_size] * block_size + position % block_size
            for position in own_positions
        ]

    def add_tiles(
        self,
        prompts: Iterable[BatchRow],
        tiled: Iterable[BatchRow],
        tile_size: int,
        block_tables: DeviceBlockTables,
    ) -> None:
        """Divides the tokens of `tiled` into tiles; those of `prompts` come before them."""
        self.tile_size = tile_size
        self.prompt_lengths = [row.end for row in prompts]
        first = 0
        for row in tiled:
            table_start = block_tables.place(row.seq_id, row.block_table)
            end = first + row.end - row.start
            for token in range(first, end, tile_size):
                self.first_tokens.append(token)
                self.num_queries.append(min(tile_size, end - token))
                self.table_starts.append(table_start)
            first = end

    def packed(self, num_tokens: int, num_tiles: int, padding_slot: int) -> list[int]:
        """Packs all fields into one flat list, padded to `num_tokens` tokens and `num_tiles` tiles.

        `device_inputs` takes it apart again.
        """
        num_padding = num_tokens - len(self.input_ids)
        packed = self.input_ids + [0] * num_padding + self.positions + [0] * num_padding
        packed += self.slots + [padding_slot] * num_padding
        for column in (self.first_tokens, self.num_queries, self.table_starts):
            packed += column + [0] * (num_tiles - len(column))
        return packed

    def to_device(self, cache: PagedKVCache, block_tables: DeviceBlockTables) -> DeviceInputs:
        """Copies everything to the device of the pool."""
        sizes = len(self.input_ids), len(self.first_tokens)
        packed = to_device(self.packed(*sizes, 0), cache.pool.device)
        return device_inputs(
            cache, block_tables, packed, *sizes, self.tile_size, self.prompt_lengths
        )


class PagedAttention:
    """The attention of one step, which the decoder calls once per layer.

    Args:
        cache: The pool, with its kernels.
        slots: ``[T]``, the row of `PagedKVCache.slot_rows` for each token's keys and values.
        tiles: All tokens but those of `prompt_lengths`, counted from the first of them.
        prompt_lengths: The lengths of the prompts at the beginning, for the kernel for prompts.
    """

    def __init__(
        self, cache: PagedKVCache, slots: Tensor, tiles: QueryTiles, prompt_lengths: list[int]
    ) -> None:
        self.cache = cache
        self.slots = slots
        self.tiles = tiles
        self.prompt_lengths = prompt_lengths
        if prompt_lengths:
            starts = [*accumulate(prompt_lengths, initial=0)]
            self._prompt_starts = to_device(starts, cache.pool.device, torch.int32)

    def kv_slots(self, layer_idx: int) -> KVSlots:
        """Returns the slots for the step's keys and values, in the layer's pool."""
        return self.cache.slot_rows[layer_idx], self.slots

    def __call__(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Attends to the pool, to which the step's keys and values have been written.

        Args:
            layer_idx: The layer's position in the cache.
            q: Queries, ``[T, heads, head_dim]``.
            kv: The step's keys and values, ``[T, kv_heads, 2 * head_dim]``.

        Returns:
            ``[T, heads, head_dim]``.
        """
        cache, kernels, window = self.cache, self.cache.kernels, self.cache.windows[layer_idx]
        outputs = []
        first_tiled = sum(self.prompt_lengths)
        if self.prompt_lengths:
            assert kernels.prompts is not None
            k, v = kv[:first_tiled].chunk(2, dim=-1)
            prompts = self._prompt_starts, max(self.prompt_lengths)
            outputs.append(kernels.prompts(q[:first_tiled], k, v, *prompts, window))
        if len(self.tiles.first_tokens):
            pool = cache.pool[layer_idx]
            outputs.append(kernels.paged(q[first_tiled:], pool, self.tiles, window))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


DeviceInputs: TypeAlias = tuple[Tensor, Tensor, PagedAttention]
"""The tokens of a step, their positions, and its attention."""


def device_inputs(
    cache: PagedKVCache,
    block_tables: DeviceBlockTables,
    packed: Tensor,
    num_tokens: int,
    num_tiles: int,
    tile_size: int,
    prompt_lengths: list[int],
) -> DeviceInputs:
    """Returns the inputs as views of `packed`, which is in the order of `StepInputs.packed`."""
    parts = torch.split(packed, [num_tokens] * 3 + [num_tiles] * 3)
    input_ids, positions, slots, first_tokens, num_queries, table_starts = parts
    tiled = positions[sum(prompt_lengths) :]
    tables = table_starts, tiled, block_tables.blocks
    tiles = QueryTiles(tile_size, first_tokens, num_queries, *tables)
    return input_ids, positions, PagedAttention(cache, slots, tiles, prompt_lengths)
