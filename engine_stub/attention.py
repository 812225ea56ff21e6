"""Attention over a paged KV cache: write the step's keys and values, then attend through tables.

The pool's layout is ``[layers, 2 (keys, values), blocks, kv_heads, block_size, head_dim]``, so one
head of one block is a contiguous row, and gathering the rows of a table gives each sequence's keys
as ``[kv_heads, tokens, head_dim]`` by plain copies. All index tensors and masks are made once per
step; a layer only gathers and multiplies.

The step's tokens lie one after another in *segments* of sequences that have equally many queries
and similarly long tables, so that each segment is one call of torch's attention. Padding within a
segment is masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of sequences whose attention is computed in one call.

    Attributes:
        start: Index of the first token in the step.
        end: Index after the last token.
        num_seqs: Sequences; each has ``(end - start) / num_seqs`` tokens.
        rows: ``[num_seqs * kv_heads * blocks]``, the pool's rows that hold the keys, padded with
            row 0; None if there is nothing before the step's own tokens.
        mask: ``[num_seqs, 1, queries, blocks * block_size]`` in the model's dtype, 0 where a
            query sees a key and minus infinity elsewhere; None if `rows` is.
    """

    start: int
    end: int
    num_seqs: int
    rows: Tensor | None
    mask: Tensor | None


class PagedKVCache:
    """The pool of keys and values of all layers.

    Attributes:
        pool: ``[layers, 2, num_blocks, kv_heads, block_size, head_dim]``.
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
    ) -> None:
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        shape = (num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim)
        self.pool = torch.zeros(shape, device=device, dtype=dtype)

    @staticmethod
    def bytes_per_block(
        num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes that one block takes over all layers."""
        return 2 * num_layers * num_kv_heads * block_size * head_dim * dtype.itemsize

    def write_rows(self, blocks: Tensor, offsets: Tensor) -> Tensor:
        """Where the pool, as rows of one slot and head, holds tokens: ``[T * kv_heads]``.

        Args:
            blocks: ``[T]``, each token's physical block.
            offsets: ``[T]``, its slot within the block.
        """
        heads = torch.arange(self.num_kv_heads, device=blocks.device)
        rows = (blocks[:, None] * self.num_kv_heads + heads) * self.block_size + offsets[:, None]
        return rows.flatten()

    def read_rows(self, block_tables: Tensor) -> Tensor:
        """Where the pool, as rows of one block and head, holds tables: ``[n * kv_heads * blocks]``.

        Args:
            block_tables: ``[n, blocks]``, padded with any block.
        """
        heads = torch.arange(self.num_kv_heads, device=block_tables.device)
        return (block_tables[:, None, :] * self.num_kv_heads + heads[:, None]).flatten()


class PagedAttention:
    """One step's `attend` for the decoder.

    Args:
        cache: The pool, which is written.
        write_rows: Where each token's keys and values go, of `PagedKVCache.write_rows`.
        segments: The step's tokens, all of them and in order.
    """

    def __init__(self, cache: PagedKVCache, write_rows: Tensor, segments: list[Segment]) -> None:
        self.cache = cache
        self.write_rows = write_rows
        self.segments = segments

    def __call__(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with ``q [T, heads, head_dim]``; ``k`` and ``v`` are ``[T, kv_heads, head_dim]``.

        Returns ``[T, heads, head_dim]``.
        """
        head_dim = q.shape[-1]
        key_pool, value_pool = self.cache.pool[layer_idx].unbind()
        key_pool.view(-1, head_dim).index_copy_(0, self.write_rows, k.reshape(-1, head_dim))
        value_pool.view(-1, head_dim).index_copy_(0, self.write_rows, v.reshape(-1, head_dim))

        outputs = [
            self._attend(segment, q, k, v, key_pool, value_pool) for segment in self.segments
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(
        self,
        segment: Segment,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_pool: Tensor,
        value_pool: Tensor,
    ) -> Tensor:
        rows = slice(segment.start, segment.end)
        _, num_heads, head_dim = q.shape
        kv_heads = self.cache.num_kv_heads
        n = segment.num_seqs
        if segment.rows is None:
            q, k, v = (x[rows].view(n, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.transpose(1, 2).reshape(-1, num_heads, head_dim)

        row_size = self.cache.block_size * head_dim
        keys = key_pool.view(-1, row_size).index_select(0, segment.rows)
        values = value_pool.view(-1, row_size).index_select(0, segment.rows)
        keys, values = (x.view(n, kv_heads, -1, head_dim) for x in (keys, values))
        q = q[rows].view(n, -1, num_heads, head_dim)
        if q.shape[1] == 1:
            # The query heads that share a key head become that head's queries: nothing repeated.
            q = q.reshape(n, kv_heads, -1, head_dim)
            out = scaled_dot_product_attention(q, keys, values, attn_mask=segment.mask)
            return out.reshape(n, num_heads, head_dim)
        q = q.transpose(1, 2)
        out = scaled_dot_product_attention(q, keys, values, attn_mask=segment.mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(-1, num_heads, head_dim)
