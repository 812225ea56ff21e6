"""The decoder against transformers' own Llama, on tiny random checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from engine_stub.model_executor.loader import load_model, save_pretrained
from engine_stub.model_executor.model import AttentionFn, Decoder

CPU = torch.device("cpu")
VOCAB_SIZE = 97


def llama(**changes: Any) -> LlamaForCausalLM:
    """Return a random Llama whose every norm weight differs from one."""
    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
        "bos_token_id": 0,
        "eos_token_id": [1, 2],
        "tie_word_embeddings": False,
    }
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**(shape | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def causal(length: int) -> AttentionFn:
    """Return attention over one sequence of `length` tokens, written out in full."""

    def attend(layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        k, v = kv.chunk(2, dim=-1)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    return attend


def logits_of(decoder: Decoder, ids: Tensor, positions: Tensor | None = None) -> Tensor:
    if positions is None:
        positions = torch.arange(len(ids))
    with torch.no_grad():
        return decoder.compute_logits(decoder(ids, positions, causal(len(ids))))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="grouped-query"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"num_key_value_heads": 6}, id="multi-head"),
        pytest.param({"num_key_value_heads": 1}, id="multi-query"),
        pytest.param({"head_dim": 16}, id="wide-heads"),
        pytest.param({"num_hidden_layers": 1, "rms_norm_eps": 1e-2}, id="one-layer"),
    ],
)
def test_logits_equal_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    reference = llama(**changes)
    reference.save_pretrained(tmp_path)
    decoder = load_model(tmp_path, device=CPU, dtype=torch.float32)

    ids = torch.randint(VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]

    torch.testing.assert_close(logits_of(decoder, ids), expected, atol=1e-5, rtol=1e-4)


def test_positions_are_the_tokens_own(tmp_path: Path) -> None:
    reference = llama()
    reference.save_pretrained(tmp_path)
    decoder = load_model(tmp_path, device=CPU, dtype=torch.float32)

    ids = torch.arange(20)
    positions = torch.cat((torch.arange(8), torch.arange(100, 112)))
    with torch.no_grad():
        expected = reference(ids[None], position_ids=positions[None]).logits[0]

    got = logits_of(decoder, ids, positions)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(got, logits_of(decoder, ids), atol=1e-3)


def test_bfloat16_is_within_a_rounding_of_transformers(tmp_path: Path) -> None:
    """The norm rounds once; transformers rounds before the weight and after it."""
    reference: Any = llama()
    reference.to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    decoder = load_model(tmp_path, device=CPU, dtype=torch.bfloat16)

    hidden = torch.randn(5, 48, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    with torch.no_grad():
        normed, expected = decoder.norm(hidden), reference.model.norm(hidden)
        torch.testing.assert_close(normed, expected, rtol=2**-7, atol=0)
        logits = decoder.compute_logits(hidden)
    assert logits.dtype == torch.float32


def test_sharded_checkpoint(tmp_path: Path) -> None:
    reference = llama()
    reference.save_pretrained(tmp_path, max_shard_size="30KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert len(list(tmp_path.glob("*.safetensors"))) > 1

    ids = torch.arange(12)
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]
    decoder = load_model(tmp_path, device=CPU, dtype=torch.float32)
    torch.testing.assert_close(logits_of(decoder, ids), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_saved_weights_come_back_here_and_in_transformers(tmp_path: Path, tied: bool) -> None:
    llama(tie_word_embeddings=tied).save_pretrained(tmp_path / "theirs")
    decoder = load_model(tmp_path / "theirs", device=CPU, dtype=torch.float32)
    save_pretrained(decoder, tmp_path / "ours", torch.float32)

    again = load_model(tmp_path / "ours", device=CPU, dtype=torch.float32)
    assert again.config == decoder.config
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name

    ids = torch.arange(16)
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
        expected = theirs(ids[None]).logits[0]
    torch.testing.assert_close(logits_of(again, ids), expected, atol=1e-5, rtol=1e-4)


def test_loaded_decoder_is_for_inference(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    decoder = load_model(tmp_path, device=CPU, dtype=torch.bfloat16)
    assert not decoder.training
    assert {p.dtype for p in decoder.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in decoder.parameters())
    # Angles of late positions need float32, whatever the weights are.
    assert decoder.rotary.inv_freq.dtype == torch.float32
