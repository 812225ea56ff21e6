"""The layers for a CPU give what the decoder's own give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from engine_stub.model_executor.cpu import cpu_layers
from engine_stub.model_executor.cpu.cpu_layers import use_cpu_layers
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.model import Decoder
from tests.support.checkpoints import CHECKPOINTS, make_checkpoint

CPU = torch.device("cpu")


class Causal:
    """Attention of one sequence."""

    def __call__(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, *kv.chunk(2, dim=-1)))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(0, 1)

    def grouped(self, layer_idx: int, groups: Tensor) -> Tensor:
        q, kv = groups[:, :, :-2].flatten(1, 2), groups[:, :, -2:].flatten(2)
        return self(layer_idx, q, kv).flatten(1)


@torch.inference_mode()
def hidden_states(decoder: Decoder, num_tokens: int) -> Tensor:
    ids = torch.randint(257, (num_tokens,), generator=torch.Generator().manual_seed(num_tokens))
    return decoder(ids, torch.arange(3, 3 + num_tokens), Causal())


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_hidden_states_are_those_of_the_decoders_own_layers(name: str, tmp_path: Path) -> None:
    path = make_checkpoint(name, tmp_path)
    plain, packed = (load_model(path, device=CPU, dtype=torch.float32) for _ in range(2))
    use_cpu_layers(packed)
    for num_tokens in (1, 2, 3, 40):
        torch.testing.assert_close(
            hidden_states(packed, num_tokens),
            hidden_states(plain, num_tokens),
            atol=2e-5,
            rtol=1e-4,
        )


@pytest.mark.parametrize("most_plain_bytes", [0, 2**30])
@pytest.mark.parametrize("has_mkl", [True, False])
def test_products_are_right_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_mkl: bool, most_plain_bytes: int
) -> None:
    if not has_mkl:
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    monkeypatch.setattr(cpu_layers, "_MOST_PLAIN_BYTES", most_plain_bytes)
    path = make_checkpoint("llama-biased", tmp_path, intermediate_size=200)
    plain, packed = (load_model(path, device=CPU, dtype=torch.float32) for _ in range(2))
    use_cpu_layers(packed)
    projection = plain.layers["1"].mlp.down_proj
    for num_rows in (1, 2, 3, 4, 7, 16, 31, 255, 256, 257, 1000):
        x = torch.randn(num_rows, 200, generator=torch.Generator().manual_seed(num_rows))
        torch.testing.assert_close(
            packed.layers.layers[1].down_proj(x), linear(x, projection.weight, projection.bias)
        )
