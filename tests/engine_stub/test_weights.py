"""The model that ships: small, loadable by others, and a teller of stories."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_stub.config import DEFAULT_MODEL
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.model import Decoder
from engine_stub.processing.tokenizer import Tokenizer
from engine_stub.train.loop import CausalAttention
from engine_stub.train.samples import PROMPTS, Sampling, continue_prompt

TOKENIZER = Tokenizer(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load_model(DEFAULT_MODEL, device=torch.device("cpu"), dtype=torch.float32)


def test_directory_is_small() -> None:
    assert sum(file.stat().st_size for file in DEFAULT_MODEL.iterdir()) <= 8_000_000


def test_transformers_loads_it_with_equal_logits(decoder: Decoder) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL, dtype=torch.float32).eval()
    for prompt in PROMPTS:
        ids = torch.tensor(TOKENIZER.encode(prompt))
        with torch.no_grad():
            expected = theirs(ids[None]).logits[0]
            hidden = decoder(ids, torch.arange(len(ids)), CausalAttention(len(ids)))
        got = decoder.compute_logits(hidden)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_greedy_text_is_that_of_transformers(decoder: Decoder) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL, dtype=torch.float32).eval()
    ids = torch.tensor([TOKENIZER.encode(PROMPTS[0])])
    with torch.no_grad():
        expected = theirs.generate(ids, max_new_tokens=60, do_sample=False)[0].tolist()
    greedy = Sampling(top_p=1e-9, max_tokens=60)  # leaves the likeliest token alone
    text, _ = continue_prompt(decoder, TOKENIZER, PROMPTS[0], greedy)
    assert text == TOKENIZER.decode(expected[ids.shape[1] :])


@pytest.mark.release("the weights change with training only")
def test_a_story_names_the_hero_it_was_asked_for(decoder: Decoder) -> None:
    prompt = "User: Tell me a story about a fox called Mira.\nBot:"
    stories = [
        continue_prompt(decoder, TOKENIZER, prompt, Sampling(max_tokens=60, seed=seed))[0]
        for seed in range(4)
    ]
    assert sum("Mira" in text for text in stories) >= 3
    assert len(set(stories)) == 4
