"""The operations of a decoder layer beside matrix products and attention, by torch's operators."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from engine_stub.platforms.interface import LayerKernels


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


TORCH_LAYERS = LayerKernels(add_rms_norm, silu_and_mul)
