"""The inputs of a step as numbers, which attention kernels get in one copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

from engine_stub.model_executor.attention import KernelAttention, PackedPrompts, PagedKVCache
from engine_stub.platforms import to_device
from engine_stub.platforms.interface import QueryTiles
from engine_stub.worker.batch_row import BatchRow


@dataclass(slots=True)
class StepInputs:
    """The inputs of a step, on the host.

    Attributes:
        input_ids: The tokens of all rows, one row after another.
        positions: Each token's index in its sequence.
        slots: Each token's slot of the pool.
        prompt_lengths: The lengths of the prompts at the beginning that are in no tile.
        tile_size, first_tokens, num_queries, table_starts, block_tables: See `QueryTiles`.
    """

    input_ids: list[int]
    positions: list[int]
    slots: list[int]
    prompt_lengths: list[int] = field(default_factory=list)
    tile_size: int = 1
    first_tokens: list[int] = field(default_factory=list)
    num_queries: list[int] = field(default_factory=list)
    table_starts: list[int] = field(default_factory=list)
    block_tables: list[int] = field(default_factory=list)

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
        self, prompts: Iterable[BatchRow], tiled: Iterable[BatchRow], tile_size: int
    ) -> None:
        """Divides the tokens of `tiled` into tiles; those of `prompts` come before them."""
        self.tile_size = tile_size
        self.prompt_lengths = [row.end for row in prompts]
        first = 0
        for row in tiled:
            table_start = len(self.block_tables)
            self.block_tables += row.block_table
            end = first + row.end - row.start
            for token in range(first, end, tile_size):
                self.first_tokens.append(token)
                self.num_queries.append(min(tile_size, end - token))
                self.table_starts.append(table_start)
            first = end

    def numbers(self, num_tokens: int, num_tiles: int, padding_slot: int) -> list[int]:
        """Returns everything in one list, padded to so many tokens and tiles."""
        no_tokens = [0] * (num_tokens - len(self.input_ids))
        no_tiles = [0] * (num_tiles - len(self.first_tokens))
        return [
            *self.input_ids,
            *no_tokens,
            *self.positions,
            *no_tokens,
            *self.slots,
            *[padding_slot] * len(no_tokens),
            *self.first_tokens,
            *no_tiles,
            *self.num_queries,
            *no_tiles,
            *self.table_starts,
            *no_tiles,
            *self.block_tables,
        ]

    def to_device(self, cache: PagedKVCache) -> DeviceInputs:
        """Copies everything to the device of the pool."""
        device, num_tiles = cache.pool.device, len(self.first_tokens)
        numbers = self.numbers(len(self.input_ids), num_tiles, 0)
        prompts = None
        if self.prompt_lengths:
            starts = [*accumulate(self.prompt_lengths, initial=0)]
            on_device = to_device(starts, device, torch.int32)
            prompts = PackedPrompts(starts[-1], on_device, max(self.prompt_lengths))
        sizes = len(self.input_ids), num_tiles, self.tile_size
        return device_inputs(cache, to_device(numbers, device), *sizes, prompts)


DeviceInputs: TypeAlias = tuple[Tensor, Tensor, KernelAttention]
"""The tokens of a step, their positions, and its attention."""


def device_inputs(
    cache: PagedKVCache,
    numbers: Tensor,
    num_tokens: int,
    num_tiles: int,
    tile_size: int,
    prompts: PackedPrompts | None = None,
) -> DeviceInputs:
    """Returns the inputs as views of `numbers`, which is in the order of `StepInputs.numbers`."""
    sizes = [num_tokens] * 3 + [num_tiles] * 3
    parts = torch.split(numbers, [*sizes, len(numbers) - sum(sizes)])
    input_ids, positions, slots, first_tokens, num_queries, table_starts, block_tables = parts
    tiles = None
    if num_tiles:
        tiled = positions[prompts.num_tokens :] if prompts else positions
        tiles = QueryTiles(tile_size, first_tokens, num_queries, table_starts, tiled, block_tables)
    return input_ids, positions, KernelAttention(cache, slots, prompts, tiles)
