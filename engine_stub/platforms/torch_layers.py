"""The operations of a decoder layer beside matrix products and attention, by torch's operators."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from engine_stub.platforms.interface import KVSlots, LayerKernels, QKNorm, Rotation


def add_rms_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See `LayerKernels.add_rms_norm`."""
    total = x if added is None else x + added
    return total, F.rms_norm(total, weight.shape, weight, eps)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `LayerKernels.silu_and_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate_and_write(
    heads: Tensor,
    num_kv_heads: int,
    norm: QKNorm | None,
    rotation: Rotation,
    kv_slots: KVSlots | None,
) -> tuple[Tensor, Tensor]:
    """See `LayerKernels.rotate_and_write`."""
    num_heads = heads.shape[1] - 2 * num_kv_heads
    qk, v = torch.split(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
    if norm is not None:
        q_weight, k_weight, eps = norm
        q, k = torch.split(qk, [num_heads, num_kv_heads], dim=1)
        q = F.rms_norm(q, q_weight.shape, q_weight, eps)
        k = F.rms_norm(k, k_weight.shape, k_weight, eps)
        qk = torch.cat((q, k), dim=1)
    # Queries and keys lie side by side, so that one call rotates both.
    q, k = torch.split(_rotate(qk, rotation), [num_heads, num_kv_heads], dim=1)
    kv = torch.cat((k, v), dim=-1)
    if kv_slots is not None:
        rows, slots = kv_slots
        rows.index_copy_(0, slots, kv)
    return q, kv


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates each head of ``x [T, heads, head_dim]`` by its token's angles."""
    cos, sin = rotation
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


TORCH_LAYERS = LayerKernels(add_rms_norm, silu_and_mul, rotate_and_write)
