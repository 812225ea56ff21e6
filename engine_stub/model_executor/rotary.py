"""Rotary position embeddings, and their scalings for longer contexts.

Every scaling changes the frequencies only, once, when the model is built; YaRN also scales cosines
and sines. Formulas and names are those of transformers (``modeling_rope_utils``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from engine_stub.model_executor.model_config import ModelConfig, RopeScaling
from engine_stub.platforms.interface import Rotation


class RotaryEmbedding(nn.Module):
    """Rotary position angles in the split-half layout (first half paired with second half)."""

    inv_freq: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        scaling = config.rope_scaling
        # On the CPU even if the module is built on the meta device: no checkpoint contains it.
        with torch.device("cpu"):
            inv_freq = _inv_freq(config.head_dim, config.rope_theta, scaling)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.attention_scaling = _yarn_scale(scaling) if scaling.rope_type == "yarn" else 1.0

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Returns the rotation of the heads of tokens at ``positions [T]``, in `dtype`."""
        angles = positions.to(torch.float32)[:, None] * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        cos = torch.cat((cos, cos), dim=-1)[:, None]
        sin = torch.cat((-sin, sin), dim=-1)[:, None]
        if self.attention_scaling != 1:
            cos, sin = cos * self.attention_scaling, sin * self.attention_scaling
        return cos.to(dtype), sin.to(dtype)


def _inv_freq(head_dim: int, theta: float, scaling: RopeScaling) -> Tensor:
    """Returns the radians per position of each pair of channels, ``[head_dim / 2]``."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    if scaling.rope_type == "yarn":
        return _yarn(theta**exponents, theta, scaling)
    inv_freq = 1.0 / theta**exponents
    if scaling.rope_type == "linear":
        return inv_freq / scaling.factor
    if scaling.rope_type == "llama3":
        return _llama3(inv_freq, scaling)
    # "dynamic" only applies beyond the model's own length, which the engine never exceeds.
    return inv_freq


def _llama3(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Scales as Llama 3.1: divides slow frequencies, keeps fast ones, and mixes the others."""
    context = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / inv_freq
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = ((context / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq


def _yarn(pos_freqs: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """Scales as YaRN (arXiv 2309.00071): mixes by a channel's number of turns in the context."""
    num_pairs = len(pos_freqs)

    def pair_that_turns(rotations: float) -> float:
        context = scaling.original_max_position_embeddings
        return num_pairs * math.log(context / (rotations * 2 * math.pi)) / math.log(theta)

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    width = (last - first) or 0.001
    interpolated = ((torch.arange(num_pairs, dtype=torch.float32) - first) / width).clamp(0, 1)
    unscaled = 1 - interpolated
    return 1 / (scaling.factor * pos_freqs) * (1 - unscaled) + 1 / pos_freqs * unscaled


def _yarn_scale(scaling: RopeScaling) -> float:
    """Returns YaRN's factor of cosines and sines, which preserves attention's temperature."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale(1.0)
