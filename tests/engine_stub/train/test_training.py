"""Training for real, at a size that takes seconds, and the files it leaves."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import cast

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine_stub.config import DEFAULT_MODEL
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.processing.tokenizer import Tokenizer
from engine_stub.spec_decode.draft_head import FILE_NAME, DraftHead, load_draft_head
from engine_stub.train import draft_head
from engine_stub.train.__main__ import MODEL, main
from engine_stub.train.card import loss_curve_svg
from engine_stub.train.corpus import IGNORED, draw_batch
from engine_stub.train.loop import CausalAttention, Measurement, Recipe, train
from engine_stub.train.samples import PROMPTS
from engine_stub.train.stories import draw_document
from engine_stub.train.tokenise import BOS_ID, EOS_ID, train_tokenizer

TINY = Recipe(
    steps=6, batch_tokens=256, short_context=64, long_context=128, warmup_steps=2, long_share=0.5
)


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    return train_tokenizer(vocab_size=400, documents=50, seed=1)


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return replace(
        MODEL, vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=1, head_dim=8
    )


def run(
    config: ModelConfig, recipe: Recipe, tokenizer: FastTokenizer, checkpoint: Path | None = None
) -> tuple[Decoder, list[Measurement]]:
    return train(config, recipe, tokenizer, checkpoint=checkpoint, compiled=False, measure_every=2)


@pytest.mark.release("trains the tokenizer and the model of the bundled size")
def test_the_command_leaves_a_complete_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    options = "--steps 3 --batch-tokens 1024 --no-compile --sample-tokens 5"
    assert main([*options.split(), "--out", str(out)]) == 0
    assert "step      3" in capsys.readouterr().out

    assert {file.name for file in out.iterdir()} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "loss_curve.svg",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(file.stat().st_size for file in out.iterdir()) < 8e6
    decoder = load_model(out, device=torch.device("cpu"), dtype=torch.float32)
    assert decoder.config == replace(MODEL, torch_dtype="bfloat16")
    assert Tokenizer(out).vocab_size == MODEL.vocab_size
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert "python -m engine_stub.train --steps 3 --batch-tokens 1024\n" in readme
    assert all(prompt in readme for prompt in PROMPTS)
    assert AutoModelForCausalLM.from_pretrained(out).generation_config.eos_token_id == [EOS_ID]


def test_batches_must_hold_long_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batch-tokens", "1000"]) == 2
    assert "multiple of 1024" in capsys.readouterr().err


@pytest.mark.release("trains three times")
def test_training_learns_and_repeats(config: ModelConfig, tokenizer: FastTokenizer) -> None:
    recipe = replace(TINY, steps=30)
    first, curve = run(config, recipe, tokenizer)
    again, _ = run(config, recipe, tokenizer)
    assert curve[-1].validation_loss < curve[0].validation_loss - 0.3
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    other, _ = run(config, replace(recipe, seed=2), tokenizer)
    assert not torch.equal(first.embed_tokens.weight, other.embed_tokens.weight)


def test_a_stopped_run_resumes_to_the_same_weights(
    tmp_path: Path, config: ModelConfig, tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, whole_curve = run(config, TINY, tokenizer)

    steps_left = 3

    def draw_until_stopped(
        tokenizer: FastTokenizer, stream: str, rows: int, context: int
    ) -> tuple[Tensor, Tensor]:
        nonlocal steps_left
        if "/train/" in stream:
            if steps_left == 0:
                raise KeyboardInterrupt
            steps_left -= 1
        return draw_batch(tokenizer, stream, rows, context)

    checkpoint = tmp_path / "state.pt"
    with monkeypatch.context() as patched:
        patched.setattr("engine_stub.train.loop.draw_batch", draw_until_stopped)
        with pytest.raises(KeyboardInterrupt):
            run(config, TINY, tokenizer, checkpoint)

    resumed, curve = run(config, TINY, tokenizer, checkpoint)
    assert [point.step for point in curve] == [point.step for point in whole_curve] == [2, 4, 6]
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_the_rate_warms_up_holds_and_falls_to_zero() -> None:
    recipe = Recipe(steps=1000, warmup_steps=10, decay_share=0.3, long_share=0.2)
    rates = [recipe.rate(step) for step in range(recipe.steps)]
    assert rates[0] < rates[5] < rates[9] == recipe.learning_rate
    assert set(rates[9:701]) == {recipe.learning_rate}
    assert all(later < earlier for earlier, later in pairwise(rates[700:]))
    assert 0 < rates[-1] < recipe.learning_rate / 500
    assert recipe.context(799) == recipe.short_context
    assert recipe.context(800) == recipe.long_context


def test_only_the_story_is_a_target(tokenizer: FastTokenizer) -> None:
    inputs, targets = draw_batch(tokenizer, "a stream", rows=4, context=128)
    assert inputs.shape == targets.shape == (512,)
    assert inputs[0] == BOS_ID
    learnt = targets != IGNORED
    assert torch.equal(targets[:-1][learnt[:-1]], inputs[1:][learnt[:-1]])

    document = draw_document(Random("a stream"))
    lead_in = len(tokenizer.encode(document.lead_in, add_special_tokens=False).ids)
    story = tokenizer.encode(document.story, add_special_tokens=False).ids
    assert not learnt[:lead_in].any()
    assert targets[lead_in : lead_in + len(story) + 1].tolist() == [*story, EOS_ID]
    assert BOS_ID not in targets.tolist()


@pytest.mark.parametrize("context", [64, 300])
def test_both_kernels_attend_causally_within_a_row(context: int) -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2 * context, 4, 8, generator=generator)
    k, v = (torch.randn(2 * context, 2, 8, generator=generator) for _ in range(2))
    mixed = CausalAttention(context)(0, q, torch.cat((k, v), dim=-1))

    token, head = context + 20, 3
    seen = slice(context, token + 1)
    weights = (k[seen, 1] @ q[token, head] / 8**0.5).softmax(0)
    torch.testing.assert_close(mixed[token, head], weights @ v[seen, 1], atol=1e-5, rtol=1e-4)


def test_loss_curve_is_a_drawing_with_two_lines() -> None:
    points = [Measurement(step, step * 10, 1.0, 9.0 / step, 8.0 / step) for step in (1, 2, 3)]
    root = ET.fromstring(loss_curve_svg(points))
    assert len([child for child in root if child.tag.endswith("polyline")]) == 2
    assert ET.fromstring(loss_curve_svg(points[:1])).tag.endswith("svg")


def test_a_head_that_returns_the_models_own_states_drafts_what_the_model_says() -> None:
    model = load_model(DEFAULT_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    tokens = torch.arange(2, 66).view(1, 64)
    with torch.no_grad():
        states = model(tokens.flatten(), torch.arange(64), CausalAttention(64))[None]
    places = count(1)

    def head(_: Tensor, embedded: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        place = next(places)
        window = slice(place, place + embedded.shape[1])
        assert torch.equal(embedded, model.embed_tokens(tokens[:, window]))
        return states[:, window], memory

    _, hits = draft_head.draft_loss(cast(DraftHead, head), model, tokens)
    assert hits == [1.0] * 4


@pytest.mark.release("trains on the bundled model")
def test_a_draft_head_learns_what_the_model_says(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(DEFAULT_MODEL / name)
    options = "--steps 8 --rows 1 --threads 1"
    assert draft_head.main([*options.split(), "--model", str(tmp_path)]) == 0
    device, dtype = torch.device("cpu"), torch.float32
    stored = load_file(tmp_path / FILE_NAME)
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    trained = load_draft_head(tmp_path, 256, device=device, dtype=dtype)
    torch.manual_seed(1)
    fresh = DraftHead(256)
    torch.nn.init.zeros_(fresh.guess.weight)
    model = load_model(tmp_path, device=device, dtype=dtype)
    tokenizer = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokens, _ = draw_batch(tokenizer, "never trained on", 1, 256)
    with torch.no_grad():
        before, after = (
            draft_head.draft_loss(head, model, tokens.view(1, 256))[0] for head in (fresh, trained)
        )
    assert after < before
