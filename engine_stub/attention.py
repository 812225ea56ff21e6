"""Attention over a paged KV cache: write the step's keys and values, then attend through tables.

The pool's layout is ``[layers, blocks, kv_heads, block_size, 2 * head_dim]``: a slot holds its key
and its value side by side. So one head of one block is one row, and gathering the rows of a table
gives a sequence's keys and values as ``[kv_heads, tokens, 2, head_dim]`` by plain copies. All
index tensors and masks are made once per step; a layer only gathers and multiplies.

The step's tokens lie one after another in *segments* of sequences with equally many queries, so
that each segment is one call of torch's attention. Padding within a segment is masked and, in
layers with a sliding window, what lies before it; blocks before the window are still kept and read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as cache_results

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Context:
    """Keys and values from the pool, for a segment.

    Attributes:
        rows: ``[num_seqs * kv_heads * blocks]``, the rows of the pool that hold them.
        gathered: ``[num_seqs * kv_heads * blocks, block_size * 2 * head_dim]``, where a layer puts
            them; all segments and layers use the same memory, one after another.
        keys: ``[num_seqs, kv_heads, blocks * block_size, head_dim]``, a view of `gathered`.
        values: Likewise.
        masks: By the layer's window, ``[num_seqs, 1, queries, blocks * block_size]`` in the model's
            dtype: 0 where a query sees a key and minus infinity elsewhere.
    """

    rows: Tensor
    gathered: Tensor
    keys: Tensor
    values: Tensor
    masks: dict[int | None, Tensor]


@dataclass(frozen=True, slots=True)
class DecodeContext:
    """Keys and values of a segment of decodes, copied from the pool in earlier steps.

    Attributes:
        newest: For each layer ``[num_seqs, kv_heads, 2 * head_dim]``, where the step's own go.
        keys: For each layer ``[num_seqs, kv_heads, tokens, head_dim]``, the newest last.
        values: Likewise.
        masks: For each layer ``[num_seqs, 1, 1, tokens]``, as in `Context`; None if everything is
            seen.
    """

    newest: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]
    masks: list[Tensor | None]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of sequences whose attention is computed in one call.

    Attributes:
        start: Index of the first token in the step.
        end: Index after the last token.
        num_seqs: Sequences; each has ``(end - start) / num_seqs`` tokens.
        context: What its tokens see; None if that is nothing but each other.
    """

    start: int
    end: int
    num_seqs: int
    context: Context | DecodeContext | None


class PagedKVCache:
    """The pool of keys and values of all layers.

    Attributes:
        pool: ``[layers, num_blocks, kv_heads, block_size, 2 * head_dim]``.
        host_pool: Likewise in host memory, with `num_cpu_blocks` blocks; pinned for CUDA.
        block_rows: For each layer a view of the pool, a row per block and head:
            ``[num_blocks * kv_heads, block_size * 2 * head_dim]``.
        slot_rows: For each layer a view of the pool, a row per block, head and slot:
            ``[num_blocks * kv_heads * block_size, 2 * head_dim]``.
        windows: For each layer, the last tokens that a query sees, itself among them; None for
            all.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        windows: tuple[int | None, ...] = (),
        num_cpu_blocks: int = 0,
    ) -> None:
        self.windows = windows or (None,) * num_layers
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        self.head_dim = head_dim
        shape = (num_layers, num_blocks, num_kv_heads, block_size, 2 * head_dim)
        self.pool = torch.zeros(shape, device=device, dtype=dtype)
        host_shape = (num_layers, num_cpu_blocks, *shape[2:])
        is_pinned = device.type == "cuda" and num_cpu_blocks > 0
        self.host_pool = torch.zeros(host_shape, dtype=dtype, pin_memory=is_pinned)
        self.block_rows = [layer.view(-1, block_size * 2 * head_dim) for layer in self.pool]
        self.slot_rows = [layer.view(-1, 2 * head_dim) for layer in self.pool]
        self._heads = torch.arange(num_kv_heads, device=device)
        self._workspace = self.pool.new_empty(0)

    @staticmethod
    def bytes_per_block(
        num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes that one block takes over all layers."""
        return 2 * num_layers * num_kv_heads * block_size * head_dim * dtype.itemsize

    def swap_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks to host memory, by ``(device block, host block)``."""
        _copy_blocks(self.pool, self.host_pool, pairs)

    def swap_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks back from host memory, by ``(host block, device block)``."""
        _copy_blocks(self.host_pool, self.pool, pairs)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks on the device, by ``(source, destination)``; no source is written to."""
        _copy_blocks(self.pool, self.pool, pairs)

    def slots(self, blocks: Tensor, offsets: Tensor) -> Tensor:
        """The rows of `slot_rows` for tokens: ``[T * kv_heads]``.

        Args:
            blocks: ``[T]``, each token's physical block.
            offsets: ``[T]``, its slot within the block.
        """
        heads = blocks[:, None] * self.num_kv_heads + self._heads
        return (heads * self.block_size + offsets[:, None]).flatten()

    def contexts(
        self, block_tables: list[list[int]], positions: Tensor, sizes: list[int]
    ) -> list[Context]:
        """Prepare reading block tables, for segments of as many sequences as `sizes` says.

        Args:
            block_tables: In order of length.
            positions: ``[tables, queries]`` on the pool's device, each query's index in its
                sequence: it sees the keys up to its own.
        """
        width = len(block_tables[-1])
        padded = [table + [0] * (width - len(table)) for table in block_tables]
        tables = torch.tensor(padded, device=self.pool.device)
        rows = tables[:, None, :] * self.num_kv_heads + self._heads[:, None]
        keys = torch.arange(width * self.block_size, device=self.pool.device)
        masks = {
            window: self._mask(positions[:, None, :, None], keys, window)
            for window in dict.fromkeys(self.windows)
        }
        contexts = []
        end = 0
        for size in sizes:
            start, end = end, end + size
            num_blocks = len(block_tables[end - 1])
            contexts.append(
                self._context(
                    rows[start:end, :, :num_blocks],
                    {
                        window: mask[start:end, ..., : num_blocks * self.block_size]
                        for window, mask in masks.items()
                    },
                )
            )
        return contexts

    def _mask(self, positions: Tensor, keys: Tensor, window: int | None) -> Tensor:
        """0 where a query at one of `positions` sees a key, else minus infinity; broadcasts."""
        unseen = keys > positions
        if window is not None:
            unseen |= keys <= positions - window
        mask = torch.zeros(unseen.shape, dtype=self.pool.dtype, device=self.pool.device)
        return mask.masked_fill_(unseen, -torch.inf)

    def prompt_mask(self, length: int, window: int) -> Tensor:
        """What the tokens of a sequence of `length` see of each other: ``[length, length]``."""
        positions = torch.arange(length, device=self.pool.device)
        return self._mask(positions[:, None], positions, window)

    def _context(self, rows: Tensor, masks: dict[int | None, Tensor]) -> Context:
        """A segment that reads ``rows [n, kv_heads, blocks]``."""
        num_seqs, num_heads, num_blocks = rows.shape
        row_size = self.block_size * 2 * self.head_dim
        if self._workspace.numel() < rows.numel() * row_size:
            self._workspace = self.pool.new_empty(rows.numel() * row_size)
        gathered = self._workspace[: rows.numel() * row_size].view(-1, row_size)
        keys, values = gathered.view(
            num_seqs, num_heads, num_blocks * self.block_size, 2, self.head_dim
        ).unbind(3)
        return Context(rows.flatten(), gathered, keys, values, masks)


def _copy_blocks(source: Tensor, destination: Tensor, pairs: list[tuple[int, int]]) -> None:
    """Copy blocks of all layers from one pool to another, or within one."""
    if pairs:
        sources, destinations = torch.tensor(pairs).unbind(1)
        content = source.index_select(1, sources.to(source.device)).to(destination.device)
        destination.index_copy_(1, destinations.to(destination.device), content)


class PagedAttention:
    """One step's `attend` for the decoder.

    Args:
        cache: The pool, which is written.
        slots: Where each token's keys and values go, of `PagedKVCache.slots`.
        segments: The step's tokens, all of them and in order.
    """

    def __init__(self, cache: PagedKVCache, slots: Tensor, segments: list[Segment]) -> None:
        self.cache = cache
        self.slots = slots
        self.segments = segments
        self._prompt_mask = cache_results(cache.prompt_mask)  # of this step, for all layers

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with ``q [T, heads, head_dim]``; ``k`` and ``v`` are ``[T, kv_heads, head_dim]``.

        Returns ``[T, heads, head_dim]``.
        """
        slot_rows = self.cache.slot_rows[layer_idx]
        kv = torch.cat((k, v), dim=-1)
        slot_rows.index_copy_(0, self.slots, kv.view(-1, kv.shape[-1]))
        outputs: list[Tensor] = []
        for segment in self.segments:
            context, tokens = segment.context, slice(segment.start, segment.end)
            if context is None:
                outputs.append(self._attend_within(segment, layer_idx, q, k, v))
            elif isinstance(context, DecodeContext):
                context.newest[layer_idx].copy_(kv[tokens])
                keys, values = context.keys[layer_idx], context.values[layer_idx]
                outputs.append(_attend_once(q[tokens], keys, values, context.masks[layer_idx]))
            else:
                outputs.append(self._attend_to(context, segment, layer_idx, q))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_within(
        self, segment: Segment, layer_idx: int, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """Causal attention of sequences that begin with this step."""
        tokens = slice(segment.start, segment.end)
        q, k, v = (
            x[tokens].view(segment.num_seqs, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)
        )
        window, length = self.cache.windows[layer_idx], q.shape[2]
        if window is None or length <= window:
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            mask = self._prompt_mask(length, window)
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    def _attend_to(self, context: Context, segment: Segment, layer_idx: int, q: Tensor) -> Tensor:
        """Attention to keys and values from the pool, the step's own among them."""
        torch.index_select(self.cache.block_rows[layer_idx], 0, context.rows, out=context.gathered)
        q = q[segment.start : segment.end]
        num_tokens, num_heads, head_dim = q.shape
        num_seqs = segment.num_seqs
        mask = context.masks[self.cache.windows[layer_idx]]
        if num_tokens == num_seqs:
            return _attend_once(q, context.keys, context.values, mask)
        q = q.view(num_seqs, -1, num_heads, head_dim).transpose(1, 2)
        out = scaled_dot_product_attention(
            q, context.keys, context.values, attn_mask=mask, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)


def _attend_once(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of one token per sequence: ``q [num_seqs, heads, head_dim]``, and returned so."""
    # The query heads that share a key head become that head's queries: nothing is repeated.
    grouped = q.reshape(len(q), keys.shape[1], -1, q.shape[-1])
    out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return out.reshape(q.shape)
