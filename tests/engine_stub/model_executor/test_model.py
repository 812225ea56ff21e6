"""The decoder's weights and rounding; checkpoints of all families test its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_stub.model_executor.loader import load_model, save_pretrained
from tests.support.checkpoints import make_checkpoint

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_saved_weights_come_back_here_and_in_transformers(tmp_path: Path, name: str) -> None:
    theirs = make_checkpoint(name, tmp_path / "theirs", eos_token_id=[1, 2], bos_token_id=0)
    decoder = load_model(theirs, device=CPU, dtype=torch.float32)
    save_pretrained(decoder, tmp_path / "ours", torch.float32)
    again = load_model(tmp_path / "ours", device=CPU, dtype=torch.float32)
    assert again.config == decoder.config
    models = [
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (theirs, tmp_path / "ours")
    ]
    for one, other in (decoder, again), models:
        for (name, tensor), loaded in zip(
            one.state_dict().items(), other.state_dict().values(), strict=True
        ):
            assert torch.equal(tensor, loaded), name


def test_bfloat16_is_within_a_rounding_of_transformers(tmp_path: Path) -> None:
    """The norm rounds once; transformers rounds before the weight and after it."""
    path = make_checkpoint("llama-biased", tmp_path)
    reference: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    decoder = load_model(path, device=CPU, dtype=torch.bfloat16)
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    with torch.no_grad():
        (_, normed), expected = decoder.norm(hidden, None), reference.model.norm(hidden)
        torch.testing.assert_close(normed, expected, rtol=2**-7, atol=0)
        logits = decoder.compute_logits(hidden)
    assert logits.dtype == torch.float32


def test_loaded_decoder_is_for_inference(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path)
    decoder = load_model(path, device=CPU, dtype=torch.bfloat16)
    assert not decoder.training
    assert {p.dtype for p in decoder.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in decoder.parameters())
    # Angles of late positions need float32, whatever the weights are.
    assert decoder.rotary.inv_freq.dtype == torch.float32
