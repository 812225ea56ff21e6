"""The operations of a decoder layer beside matrix products and attention, in Triton.

By torch's operators each of these is several kernels, and each of those reads from memory what the
one before wrote to it. Here one kernel does it all; it computes in float32 and rounds what it
writes. `torch_layers` has the same by torch's operators.

This module is imported on CUDA only: Triton comes with torch's builds for CUDA.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_stub.platforms import torch_layers
from engine_stub.platforms.interface import KVSlots, LayerKernels, QKNorm, Rotation

# The threads of a warp.
_WARP = 32
# The numbers of a row that a program of `_silu_and_mul` computes.
_COLUMNS = 1024


@triton.jit
def _add_rms_norm(x, added, weight, total, normed, eps, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    # 64 bits: a step of many tokens may have more than 2**31 numbers.
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    exists = columns < SIZE
    at = token * SIZE + columns
    row = tl.load(x + at, mask=exists, other=0.0).to(tl.float32)
    row += tl.load(added + at, mask=exists, other=0.0).to(tl.float32)
    # What is normalized is the stream that later layers get.
    rounded = row.to(total.dtype.element_ty)
    tl.store(total + at, rounded, mask=exists)
    row = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(row * row, 0) / SIZE + eps)
    factors = factor * tl.load(weight + columns, mask=exists, other=0.0).to(tl.float32)
    tl.store(normed + at, row * factors, mask=exists)


@triton.jit
def _silu_and_mul(gate_up, out, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    exists = columns < SIZE
    gate_at = gate_up + token * 2 * SIZE + columns
    gate = tl.load(gate_at, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(gate_at + SIZE, mask=exists, other=0.0).to(tl.float32)
    tl.store(out + token * SIZE + columns, gate * tl.sigmoid(gate) * up, mask=exists)


# The slots of a step begin anywhere in its inputs.
@triton.jit(do_not_specialize_on_alignment=["slots"])
def _rotate_and_write(
    heads,
    q_weight,
    k_weight,
    eps,
    cos,
    sin,
    rows,
    slots,
    q,
    kv,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    IS_NORMED: tl.constexpr,
    IS_WRITTEN: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)  # of queries, then of keys
    dims = tl.arange(0, DIMS)
    partners = (dims + HEAD_DIM // 2) % HEAD_DIM
    in_head = dims < HEAD_DIM
    at = heads + (token * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM
    x = tl.load(at + dims, mask=in_head, other=0.0).to(tl.float32)
    partner = tl.load(at + partners, mask=in_head, other=0.0).to(tl.float32)
    if IS_NORMED:
        weight = q_weight
        if head >= HEADS:
            weight = k_weight
        factor = tl.rsqrt(tl.sum(x * x, 0) / HEAD_DIM + eps)
        x *= factor * tl.load(weight + dims, mask=in_head, other=0.0).to(tl.float32)
        partner *= factor * tl.load(weight + partners, mask=in_head, other=0.0).to(tl.float32)
    angles = token * HEAD_DIM + dims
    x *= tl.load(cos + angles, mask=in_head, other=0.0).to(tl.float32)
    x += partner * tl.load(sin + angles, mask=in_head, other=0.0).to(tl.float32)
    if head < HEADS:
        tl.store(q + (token * HEADS + head) * HEAD_DIM + dims, x, mask=in_head)
    else:
        kv_head = head - HEADS
        value = tl.load(at + KV_HEADS * HEAD_DIM + dims, mask=in_head)
        kv_at = kv + (token * KV_HEADS + kv_head) * 2 * HEAD_DIM + dims
        tl.store(kv_at, x, mask=in_head)
        tl.store(kv_at + HEAD_DIM, value, mask=in_head)
        if IS_WRITTEN:
            slot = tl.load(slots + token)
            row_at = rows + (slot * KV_HEADS + kv_head) * 2 * HEAD_DIM + dims
            tl.store(row_at, x, mask=in_head)
            tl.store(row_at + HEAD_DIM, value, mask=in_head)


def add_rms_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See `LayerKernels.add_rms_norm`."""
    if added is None:
        return torch_layers.add_rms_norm(x, added, weight, eps)
    num_tokens, size = x.shape
    total, normed = torch.empty_like(x), torch.empty_like(x)
    columns = triton.next_power_of_2(size)
    _add_rms_norm[num_tokens,](
        *(x, added, weight, total, normed, eps),
        SIZE=size,
        COLUMNS=columns,
        num_warps=num_warps(columns),
    )
    return total, normed


def num_warps(columns: int) -> int:
    """Returns the number of warps for a row of so many numbers: 8 for each thread, at most 16."""
    return min(max(columns // (8 * _WARP), 1), 16)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `LayerKernels.silu_and_mul`."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    grid = num_tokens, triton.cdiv(size, _COLUMNS)
    _silu_and_mul[grid](gate_up, out, SIZE=size, COLUMNS=_COLUMNS)
    return out


def rotate_and_write(
    heads: Tensor,
    num_kv_heads: int,
    norm: QKNorm | None,
    rotation: Rotation,
    kv_slots: KVSlots | None,
) -> tuple[Tensor, Tensor]:
    """See `LayerKernels.rotate_and_write`."""
    num_tokens, num_all, head_dim = heads.shape
    num_heads = num_all - 2 * num_kv_heads
    q = torch.empty((num_tokens, num_heads, head_dim), dtype=heads.dtype, device=heads.device)
    kv = torch.empty(
        (num_tokens, num_kv_heads, 2 * head_dim), dtype=heads.dtype, device=heads.device
    )
    _rotate_and_write[num_tokens, num_heads + num_kv_heads](
        heads,
        *((heads, heads, 0.0) if norm is None else norm),
        *rotation,
        *((heads, heads) if kv_slots is None else kv_slots),
        q,
        kv,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        DIMS=triton.next_power_of_2(head_dim),
        IS_NORMED=norm is not None,
        IS_WRITTEN=kv_slots is not None,
        num_warps=1,
    )
    return q, kv


TRITON_LAYERS = LayerKernels(add_rms_norm, silu_and_mul, rotate_and_write)
