"""The training loop: AdamW at a constant rate on short rows, decaying towards long rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.train.corpus import IGNORED, draw_batch


@dataclass(frozen=True)
class Recipe:
    """The parameters that determine the result of a training run."""

    steps: int = 4500
    batch_tokens: int = 4096
    short_context: int = 256
    long_context: int = 1024
    decay_share: float = 0.4
    """The last share of the steps, in which the learning rate falls to zero."""
    long_share: float = 0.15
    """The last share of the steps, whose rows have the long context."""
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    seed: int = 1

    def context(self, step: int) -> int:
        """Returns the number of tokens in a row of the batch at `step`."""
        is_short = step < self.steps * (1 - self.long_share)
        return self.short_context if is_short else self.long_context

    def rate(self, step: int) -> float:
        """Returns the learning rate at `step`.

        The decay has the shape 1 - sqrt(progress) of Hägele et al., "Scaling Laws and
        Compute-Optimal Training Beyond Fixed Training Durations", 2024.
        """
        warm = min(1.0, (step + 1) / self.warmup_steps)
        decay_steps = self.steps * self.decay_share
        progress = max(0.0, (step - self.steps + decay_steps) / decay_steps)
        return self.learning_rate * min(warm, 1.0 - math.sqrt(progress))


@dataclass(frozen=True)
class Measurement:
    """A point of the loss curve; losses in nats per token, time in seconds of training."""

    step: int
    tokens: int
    seconds: float
    training_loss: float
    validation_loss: float


def train(
    config: ModelConfig,
    recipe: Recipe,
    tokenizer: Tokenizer,
    *,
    checkpoint: Path | None,
    compiled: bool,
    measure_every: int,
) -> tuple[Decoder, list[Measurement]]:
    """Trains a decoder; returns it with its loss curve.

    With `checkpoint`, the state is saved there at each measurement, and a file already there is
    resumed. A resumed run may be given other `steps` as long as the decay has not begun: up to
    there the steps do not depend on where the run will end.
    """
    torch.manual_seed(recipe.seed)
    decoder = Decoder(config)
    initialise(decoder)
    optimizer = _adamw(decoder, recipe)
    curve: list[Measurement] = []
    first, seconds_before = 0, 0.0
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        decoder.load_state_dict(state["decoder"])
        optimizer.load_state_dict(state["optimizer"])
        curve = [Measurement(**point) for point in state["curve"]]
        first, seconds_before = curve[-1].step, curve[-1].seconds
        print(f"resumed at step {first}", flush=True)

    loss_of = _loss_function(decoder, compiled=compiled)
    started = time.monotonic()
    recent: list[float] = []
    for step in range(first, recipe.steps):
        context = recipe.context(step)
        rows = recipe.batch_tokens // context
        inputs, targets = draw_batch(tokenizer, f"{recipe.seed}/train/{step}", rows, context)
        loss = loss_of(inputs, targets, context)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        optimizer.step()
        optimizer.zero_grad()
        recent.append(loss.item())
        done = step + 1
        if done % measure_every == 0 or done == recipe.steps:
            point = Measurement(
                step=done,
                tokens=done * recipe.batch_tokens,
                seconds=seconds_before + time.monotonic() - started,
                training_loss=math.fsum(recent) / len(recent),
                validation_loss=_validate(loss_of, recipe, tokenizer),
            )
            recent.clear()
            curve.append(point)
            print(_describe(point), flush=True)
            if checkpoint is not None:
                _save(checkpoint, decoder, optimizer, curve)
    return decoder, curve


def initialise(decoder: Decoder) -> None:
    """Draws small normal weights, smaller where they add to the residual stream (as in GPT-2)."""
    residual_scale = (2 * decoder.config.num_hidden_layers) ** -0.5
    for name, parameter in decoder.named_parameters():
        if parameter.dim() == 2:
            scale = residual_scale if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(parameter, std=0.02 * scale)


class CausalAttention:
    """The `AttentionFn` of rows of `context` tokens laid end to end."""

    def __init__(self, context: int) -> None:
        self.context = context

    def kv_slots(self, layer_idx: int) -> None:
        """Returns None: a training step attends to its own tokens only."""

    def __call__(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Attends to the tokens before, of the same row."""
        q, kv = (x.view(-1, self.context, *x.shape[1:]).transpose(1, 2) for x in (q, kv))
        k, v = kv.chunk(2, dim=-1)
        if self.context <= _SHORT:
            mixed = _plain_attention(q, k, v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(0, 1)


# Up to this many tokens, two matrix products on the CPU in bfloat16 take half the time (16 x 256
# tokens: 15 ms, forward and backward) that torch's fused kernel does (31 ms).
_SHORT = 256


def _plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    length = q.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights: Tensor = scores.masked_fill(future, -math.inf).softmax(-1)
    return weights @ v


def _loss_function(decoder: Decoder, *, compiled: bool) -> Callable[[Tensor, Tensor, int], Tensor]:
    def loss_of(inputs: Tensor, targets: Tensor, context: int) -> Tensor:
        positions = torch.arange(context).repeat(inputs.shape[0] // context)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = decoder(inputs, positions, CausalAttention(context))
            logits = decoder.compute_logits(hidden)
        return F.cross_entropy(logits, targets, ignore_index=IGNORED)

    return torch.compile(loss_of, dynamic=False) if compiled else loss_of


def _adamw(decoder: Decoder, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for p in decoder.parameters() if p.dim() == 2]
    norms = [p for p in decoder.parameters() if p.dim() == 1]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": norms, "weight_decay": 0.0},
        ],
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
        fused=True,
    )


@torch.no_grad()
def _validate(
    loss_of: Callable[[Tensor, Tensor, int], Tensor], recipe: Recipe, tokenizer: Tokenizer
) -> float:
    """Returns the mean loss over four batches of text that training never draws."""
    rows = recipe.batch_tokens // recipe.short_context
    losses = []
    for index in range(4):
        stream = f"{recipe.seed}/validation/{index}"
        inputs, targets = draw_batch(tokenizer, stream, rows, recipe.short_context)
        losses.append(loss_of(inputs, targets, recipe.short_context).item())
    return math.fsum(losses) / len(losses)


def _describe(point: Measurement) -> str:
    return (
        f"step {point.step:6d}  tokens {point.tokens / 1e6:7.2f} M  {point.seconds:7.0f} s  "
        f"training {point.training_loss:.3f}  validation {point.validation_loss:.3f}"
    )


def _save(
    path: Path, decoder: Decoder, optimizer: torch.optim.Optimizer, curve: list[Measurement]
) -> None:
    """Writes the state beside `path`, then renames it, so that `path` is always complete."""
    state: dict[str, Any] = {
        "decoder": decoder.state_dict(),
        "optimizer": optimizer.state_dict(),
        "curve": [asdict(point) for point in curve],
    }
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)
