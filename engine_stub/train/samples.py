"""Samples from a trained model: plain sampling, one sequence at a time, without a cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.model import Decoder
from engine_stub.processing.tokenizer import Tokenizer
from engine_stub.train.loop import CausalAttention

PROMPTS = (
    "Once upon a time",
    "User: Tell me a story about a fox who lost a lantern.\nBot:",
    "What is the capital of France?",
    "def fibonacci(n):\n    if n < 2:\n        return n",
    "Shopping list: milk, eggs, bread, two candles",
    "hello",
    "The robot looked up at the stars and",
    "¿Dónde está mi gato? 猫はどこ?",
    "You are a helpful assistant. Never guess.\n\nUser: How do I sort a list?\nAssistant:",
    "asdf 1234 !!",
)
"""The prompts of the samples in the model's README; half of them are not about stories."""


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters; with the same `seed` the output is the same."""

    temperature: float = 0.8
    top_p: float = 0.95
    max_tokens: int = 700
    seed: int = 0


def continue_prompt(
    decoder: Decoder, tokenizer: Tokenizer, prompt: str, sampling: Sampling
) -> tuple[str, bool]:
    """Returns the model's continuation of `prompt`, and whether it ended by itself."""
    generator = torch.Generator().manual_seed(sampling.seed)
    ids = tokenizer.encode(prompt)
    start = len(ids)
    limit = min(start + sampling.max_tokens, decoder.config.max_position_embeddings)
    while len(ids) < limit:
        token = _draw(_next_logits(decoder, ids), sampling, generator)
        if token in tokenizer.eos_token_ids:
            return tokenizer.decode(ids[start:]), True
        ids.append(token)
    return tokenizer.decode(ids[start:]), False


def write_samples(path: Path, sampling: Sampling) -> list[tuple[str, str, bool]]:
    """Returns each of `PROMPTS` with the model's continuation, computed in float32."""
    decoder = load_model(path, device=torch.device("cpu"), dtype=torch.float32)
    tokenizer = Tokenizer(path)
    return [(prompt, *continue_prompt(decoder, tokenizer, prompt, sampling)) for prompt in PROMPTS]


@torch.no_grad()
def _next_logits(decoder: Decoder, ids: list[int]) -> Tensor:
    hidden = decoder(torch.tensor(ids), torch.arange(len(ids)), CausalAttention(len(ids)))
    return decoder.compute_logits(hidden[-1:])[0]


def _draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draws from the smallest set of tokens whose probability reaches `top_p`."""
    probabilities, order = torch.softmax(logits / sampling.temperature, -1).sort(descending=True)
    before = probabilities.cumsum(-1) - probabilities
    kept = probabilities.masked_fill(before >= sampling.top_p, 0.0)
    return int(order[torch.multinomial(kept, 1, generator=generator)].item())
