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
from engine_stub.platforms.interface import LayerKernels

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


TRITON_LAYERS = LayerKernels(add_rms_norm, silu_and_mul)
