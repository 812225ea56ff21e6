"""Attention over the paged KV pool in Triton: reads blocks where they are, and copies none.

A program computes the attention of one tile of queries for one key head. All query heads that share
the key head are rows of the same products, so that each key is read once. The softmax is computed
online, as in FlashAttention. If there are too few tiles to occupy a GPU, the keys of each are split
among several programs, whose results are combined by their log-sum-exp (Flash-Decoding).

This module is imported on CUDA only: Triton comes with torch's builds for CUDA.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_stub.platforms.interface import QueryTiles

_MOST_SPLITS = 32
# The bytes of keys that a program holds at once: with values and two stages of loads, 64 KiB.
_KEY_BYTES = 2**14
_MOST_KEYS = 64
# The smallest side of a product of matrices in Triton.
_LEAST_SIDE = 16
# A window longer than any sequence.
_NO_WINDOW = 2**30


# Arguments that differ from step to step must not make Triton compile the kernel again.
@triton.jit(
    do_not_specialize=["window", "num_splits"],
    do_not_specialize_on_alignment=[
        "positions",
        "first_tokens",
        "num_queries",
        "table_starts",
        "block_tables",
    ],
)
def _attend(
    q,
    pool,
    out,
    log_sums,
    positions,
    first_tokens,
    num_queries,
    table_starts,
    block_tables,
    scale,
    window,
    num_splits,
    q_stride,
    HEADS_PER_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    KEYS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(first_tokens + tile)
    table = block_tables + tl.load(table_starts + tile)
    rows = tl.arange(0, ROWS)
    tokens = first + rows // HEADS_PER_KV
    heads = kv_head * HEADS_PER_KV + rows % HEADS_PER_KV
    is_query = rows // HEADS_PER_KV < tl.load(num_queries + tile)
    dims = tl.arange(0, DIMS)
    in_head = (dims < HEAD_DIM)[None, :]
    q_at = q + (tokens * q_stride + heads * HEAD_DIM)[:, None] + dims[None, :]
    query = tl.load(q_at, mask=is_query[:, None] & in_head, other=0.0)
    position = tl.load(positions + tokens, mask=is_query, other=-1).to(tl.int32)

    # The keys that any of the queries sees, and this program's share of them.
    end = tl.max(position, 0) + 1
    begin = tl.maximum(tl.load(positions + first).to(tl.int32) + 1 - window, 0)
    share = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), num_splits), KEYS) * KEYS
    begin += split * share
    end = tl.minimum(begin + share, end)

    best = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, DIMS], tl.float32)
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        exists = key < end
        # 64 bits: a pool may have more than 2**31 numbers.
        block = tl.load(table + key // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        kv_row = (block * BLOCK_SIZE + key % BLOCK_SIZE) * tl.num_programs(1) + kv_head
        kv_at = pool + (kv_row * 2 * HEAD_DIM)[:, None] + dims[None, :]
        is_kv = exists[:, None] & in_head
        keys = tl.load(kv_at, mask=is_kv, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        is_seen = (key[None, :] <= position[:, None]) & (key[None, :] > position[:, None] - window)
        scores = tl.where(is_seen & exists[None, :], scores, -float("inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # Rows that have seen no key yet: minus infinity from itself would be no number.
        base = tl.where(new_best == -float("inf"), 0.0, new_best)
        weights = tl.exp(scores - base[:, None])
        fade = tl.exp(best - base)
        values = tl.load(kv_at + HEAD_DIM, mask=is_kv, other=0.0)
        product = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        attended = attended * fade[:, None] + product
        total = total * fade + tl.sum(weights, 1)
        best = new_best

    safe_total = tl.where(total > 0, total, 1.0)
    out_row = (tokens * tl.num_programs(1) * HEADS_PER_KV + heads) * num_splits + split
    tl.store(
        out + (out_row * HEAD_DIM)[:, None] + dims[None, :],
        attended / safe_total[:, None],
        mask=is_query[:, None] & in_head,
    )
    if IS_SPLIT:
        log_sum = tl.where(total > 0, best + tl.log(safe_total), -float("inf"))
        tl.store(log_sums + out_row, log_sum, mask=is_query)


@triton.jit(do_not_specialize=["num_splits"])
def _combine(
    parts,
    log_sums,
    out,
    num_splits,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
):
    head = tl.program_id(0)  # of all heads of all tokens
    splits = tl.arange(0, MOST_SPLITS)
    dims = tl.arange(0, DIMS)
    rows = head * num_splits + splits
    is_split = splits < num_splits
    log_sum = tl.load(log_sums + rows, mask=is_split, other=-float("inf"))
    weights = tl.exp(log_sum - tl.max(log_sum, 0))
    weights = weights / tl.sum(weights, 0)
    at = parts + rows[:, None] * HEAD_DIM + dims[None, :]
    part = tl.load(at, mask=is_split[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    total = tl.sum(part * weights[:, None], 0)
    tl.store(out + head * HEAD_DIM + dims, total, mask=dims < HEAD_DIM)


def paged_attention(q: Tensor, pool: Tensor, tiles: QueryTiles, window: int | None) -> Tensor:
    """Computes attention to keys and values of the pool; see `AttentionKernels.paged`.

    The numbers of a token are contiguous, in `q` and in `pool`.
    """
    num_tokens, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = pool.shape
    heads_per_kv = num_heads // num_kv_heads
    num_tiles = len(tiles.first_tokens)
    dims = max(triton.next_power_of_2(head_dim), _LEAST_SIDE)
    splits = splits_of(num_tiles * num_kv_heads, most_programs(q.device))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    parts = log_sums = out
    if splits > 1:
        shape = (num_tokens, num_heads, splits)
        parts = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
        log_sums = torch.empty(shape, dtype=torch.float32, device=q.device)
    _attend[num_tiles, num_kv_heads, splits](
        q,
        pool,
        parts,
        log_sums,
        tiles.positions,
        tiles.first_tokens,
        tiles.num_queries,
        tiles.table_starts,
        tiles.block_tables,
        head_dim**-0.5,
        _NO_WINDOW if window is None else window,
        splits,
        q.stride(0),
        HEADS_PER_KV=heads_per_kv,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        ROWS=max(triton.next_power_of_2(tiles.size * heads_per_kv), _LEAST_SIDE),
        DIMS=dims,
        KEYS=keys_at_once(dims, pool.itemsize),
        IS_SPLIT=splits > 1,
        num_warps=4,
        num_stages=2,
    )
    if splits > 1:
        _combine[num_tokens * num_heads,](
            parts, log_sums, out, splits, HEAD_DIM=head_dim, DIMS=dims, MOST_SPLITS=_MOST_SPLITS
        )
    return out


@cache
def most_programs(device: torch.device) -> int:
    """Returns the number of programs that occupy a device: two for each multiprocessor."""
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count


def splits_of(num_programs: int, most: int) -> int:
    """Returns the number of programs, a power of two, that share the keys of each tile.

    Args:
        num_programs: The programs if they share nothing.
        most: The programs that occupy the device.
    """
    room = max(most // num_programs, 1)
    return min(1 << room.bit_length() - 1, _MOST_SPLITS)


def keys_at_once(dims: int, itemsize: int) -> int:
    """Returns the number of keys of so many numbers that a program holds at once."""
    return min(max(_KEY_BYTES // (dims * itemsize), _LEAST_SIDE), _MOST_KEYS)
