"""The command ``python -m engine_stub.train.draft_head``, which trains the draft head.

The head learns from the model, whose weights do not change: at each position of a text it processes
a few tokens with the model's own hidden states, continues with its predictions for the length of a
draft, and is trained to predict the model's distributions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from engine_stub.config import DEFAULT_MODEL
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.model import Decoder
from engine_stub.spec_decode.draft_head import FILE_NAME, DraftHead
from engine_stub.train.corpus import draw_batch
from engine_stub.train.loop import CausalAttention

_CONTEXT = 256
_NUM_CONTEXT = 3
"""Tokens before a draft, so that the head learns to use its memory."""
_NUM_PREDICTED = 4


def draft_loss(head: DraftHead, model: Decoder, tokens: Tensor) -> tuple[Tensor, list[float]]:
    """Computes the mean cross entropy of the head's predictions against the model's.

    Args:
        tokens: ``[rows, context]``.

    Returns:
        The loss, and for each position of a draft the share of predictions that are the model's own
        likeliest token.
    """
    rows, context = tokens.shape
    with torch.no_grad():
        positions = torch.arange(context).repeat(rows)
        states = model(tokens.flatten(), positions, CausalAttention(context))
        said = model.compute_logits(states).softmax(-1).view(rows, context, -1)
        states = states.view(rows, context, -1)
        embedded = model.embed_tokens(tokens)
    # Place i of a row processes tokens i + 1, i + 2, …, each with the state before it.
    length = context - _NUM_CONTEXT - _NUM_PREDICTED
    memory = torch.zeros_like(states[:, :length])
    guess = memory
    losses: list[Tensor] = []
    hits: list[float] = []
    for step in range(_NUM_CONTEXT + _NUM_PREDICTED - 1):
        is_context = step < _NUM_CONTEXT
        hidden = states[:, step : step + length] if is_context else guess
        guess, memory = head(hidden, embedded[:, step + 1 : step + 1 + length], memory)
        if step >= _NUM_CONTEXT - 1:
            logits = model.compute_logits(guess)
            wanted = said[:, step + 1 : step + 1 + length]
            losses.append(F.cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1)))
            hits.append(float((logits.argmax(-1) == wanted.argmax(-1)).float().mean()))
    return torch.stack(losses).mean(), hits


def train(model: Decoder, tokenizer: Tokenizer, steps: int, rows: int, seed: int) -> DraftHead:
    """Trains a head with AdamW, at a learning rate that falls to zero."""
    torch.manual_seed(seed)
    head = DraftHead(model.config.hidden_size)
    nn.init.zeros_(head.guess.weight)
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, total_steps=steps, pct_start=0.1
    )
    started = time.monotonic()
    for step in range(steps):
        inputs, _ = draw_batch(tokenizer, f"{seed}/draft-head/{step}", rows, _CONTEXT)
        loss, hits = draft_loss(head, model, inputs.view(rows, _CONTEXT))
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if (step + 1) % 20 == 0 or step + 1 == steps:
            shares = ", ".join(f"{hit:.2f}" for hit in hits)
            seconds = time.monotonic() - started
            print(f"step {step + 1}  {seconds:.0f} s  loss {loss:.3f}  right {shares}", flush=True)
    return head


def main(argv: list[str] | None = None) -> int:
    """Trains and writes; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_stub.train.draft_head",
        description="Train a draft head for a model that tells stories, and write it beside it.",
    )
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="directory (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps (%(default)s)")
    parser.add_argument("--rows", type=int, default=4, help="texts a step (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and text (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    model = load_model(options.model, device=torch.device("cpu"), dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    head = train(model, tokenizer, options.steps, options.rows, options.seed)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in head.state_dict().items()}
    save_file(weights, options.model / FILE_NAME, metadata={"format": "pt"})
    print(f"written to {options.model / FILE_NAME}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
