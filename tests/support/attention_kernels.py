"""The attention kernels as loops over sequences, to compare with and to stand in for a device's."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine_stub.platforms.interface import AttentionKernels, QueryTiles


def paged_attention(q: Tensor, pool: Tensor, tiles: QueryTiles, window: int | None) -> Tensor:
    """Attends to one tile after the other; other rows of the result are no numbers."""
    out = torch.full_like(q, torch.nan)
    for first, count, start in zip(
        tiles.first_tokens.tolist(),
        tiles.num_queries.tolist(),
        tiles.table_starts.tolist(),
        strict=True,
    ):
        assert count <= tiles.size
        if count:
            positions = tiles.positions[first : first + count]
            length = int(positions.max()) + 1
            num_blocks = -(-length // pool.shape[1])
            blocks = pool[tiles.block_tables[start : start + num_blocks]]
            k, v = blocks.flatten(0, 1)[:length].chunk(2, dim=-1)
            out[first : first + count] = _attend(q[first : first + count], k, v, positions, window)
    return out


def prompt_attention(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int, window: int | None
) -> Tensor:
    """Attends within one prompt after the other."""
    out = torch.full_like(q, torch.nan)
    bounds = starts.tolist()
    assert longest == max(end - start for start, end in pairwise(bounds))
    for start, end in pairwise(bounds):
        own = slice(start, end)
        out[own] = _attend(q[own], k[own], v[own], torch.arange(end - start), window)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int | None) -> Tensor:
    keys = torch.arange(len(k))
    is_seen = keys <= positions[:, None]
    if window is not None:
        is_seen &= keys > positions[:, None] - window
    q, k, v = (part.transpose(0, 1) for part in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, attn_mask=is_seen, enable_gqa=True)
    return out.transpose(0, 1)


KERNELS = AttentionKernels(paged_attention, prompt_attention)
PAGED_ONLY = AttentionKernels(paged_attention, None)
