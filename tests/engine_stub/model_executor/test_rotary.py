"""Rotary embeddings: rotations by position, and their scalings."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_stub.model_executor.model_config import RopeScaling
from engine_stub.model_executor.rotary import RotaryEmbedding, rotate


def embedding(**scaling: Any) -> RotaryEmbedding:
    config: Any = SimpleNamespace(
        head_dim=16, rope_theta=10_000.0, rope_scaling=RopeScaling(**scaling)
    )
    return RotaryEmbedding(config)


def test_a_rotation_keeps_lengths_and_depends_on_distances_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 16)
    rotary = embedding()

    def score(at: int, other: int) -> float:
        turned = rotate(query, rotary(torch.tensor([at]), torch.float32))
        other_turned = rotate(key, rotary(torch.tensor([other]), torch.float32))
        assert turned.norm() == pytest.approx(query.norm().item(), rel=1e-5)
        return float((turned * other_turned).sum())

    assert score(7, 3) == pytest.approx(score(107, 103), abs=1e-3)
    assert score(7, 3) != pytest.approx(score(9, 3), abs=1e-2)
    assert score(0, 0) == pytest.approx(float((query * key).sum()), rel=1e-5)


def test_linear_scaling_divides_positions() -> None:
    plain, scaled = embedding(), embedding(rope_type="linear", factor=4.0)
    near = plain(torch.tensor([2]), torch.float32)
    far = scaled(torch.tensor([8]), torch.float32)
    for one, other in zip(near, far, strict=True):
        torch.testing.assert_close(one, other)


def test_llama3_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    plain = embedding().inv_freq
    scaled = embedding(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=256,
    ).inv_freq
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(plain[-1].item() / 8)
    assert torch.all(scaled <= plain)
