"""The README beside the weights: their origin, the training run, and samples."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from engine_stub.model_executor.model import Decoder
from engine_stub.train.loop import Measurement, Recipe
from engine_stub.train.samples import Sampling, write_samples

CURVE_FILE = "loss_curve.svg"


def write_card(
    path: Path,
    decoder: Decoder,
    recipe: Recipe,
    curve: list[Measurement],
    command: str,
    threads: int,
    sampling: Sampling,
) -> None:
    """Writes ``README.md`` and the loss curve into the model directory `path`."""
    (path / CURVE_FILE).write_text(loss_curve_svg(curve), encoding="utf-8")
    sections = (
        _introduction(decoder, path),
        _recipe(recipe, curve, command, threads),
        _loss(curve),
        _samples(path, sampling),
    )
    (path / "README.md").write_text("\n".join(sections) + "\n", encoding="utf-8")


def _introduction(decoder: Decoder, path: Path) -> str:
    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    megabytes = (path / "model.safetensors").stat().st_size / 1e6
    config = decoder.config
    return f"""\
# A small story model

A decoder of the Llama family with {parameters / 1e6:.2f} M parameters ({megabytes:.1f} MB in
bfloat16) that answers every prompt with a short story. It exists so that the bundled engine has
real work to do on any machine; it knows nothing and should be asked for nothing but stories.

Hero and friend mostly keep their names. Objects, helpers and pronouns drift within a story, and the
subject that a prompt asks for is often not taken up: see the samples below.

| | |
|---|---|
| layers | {config.num_hidden_layers} |
| hidden size | {config.hidden_size} |
| feed-forward size | {config.intermediate_size} |
| attention heads (key-value heads) | {config.num_attention_heads} ({config.num_key_value_heads}) |
| vocabulary | {config.vocab_size} tokens, byte-level BPE, embeddings tied |
| context | {config.max_position_embeddings} tokens |

The layout is Hugging Face's, so `transformers.AutoModelForCausalLM` loads it too. This page, the
weights and the tokenizer are written by `engine_stub.train`.
"""


def _recipe(recipe: Recipe, curve: list[Measurement], command: str, threads: int) -> str:
    last = curve[-1]
    longer, slower = f"{recipe.long_share:.0%}", f"{recipe.decay_share:.0%}"
    facts = {
        "seed": recipe.seed,
        "steps": f"{recipe.steps:,} of {recipe.batch_tokens:,} tokens: {last.tokens / 1e6:.1f} M",
        "rows": f"{recipe.short_context} tokens; {recipe.long_context} in the last {longer}",
        "optimizer": f"AdamW, betas 0.9 and 0.95, weight decay {recipe.weight_decay} on matrices",
        "learning rate": f"{recipe.learning_rate}, falling to 0 in the last {slower}",
        "warm-up": f"{recipe.warmup_steps} steps",
        "gradient norm": "at most 1",
        "arithmetic": "bfloat16 autocast over float32 weights, `torch.compile`",
        "hardware": f"{threads} CPU cores, shared with other work",
        "time": f"{last.seconds / 60:.0f} minutes, {last.tokens / last.seconds:,.0f} tokens/s",
        "final training loss": f"{last.training_loss:.3f} nats per token",
        "final validation loss": f"{last.validation_loss:.3f} nats per token",
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""\
## Recipe

    {command}

All text comes from the story grammar in `engine_stub/train/stories`; nothing is downloaded and no
text of other people is used. Each batch is drawn afresh from the seed and the number of the step,
so no story is seen twice. Lead-ins (questions, lists, code, noise, system prompts) are read but not
learnt: only what follows them counts in the loss.

| | |
|---|---|
{rows}
"""


def _loss(curve: list[Measurement]) -> str:
    stride = max(1, len(curve) // 12)
    shown = [*curve[:-1:stride], curve[-1]]
    rows = "\n".join(
        f"| {point.step:,} | {point.tokens / 1e6:.2f} M | {point.seconds / 60:.1f} min | "
        f"{point.training_loss:.3f} | {point.validation_loss:.3f} |"
        for point in shown
    )
    return f"""\
## Loss

![Training and validation loss against tokens]({CURVE_FILE})

Training loss is the mean since the point before; validation text is never trained on, and cut into
rows of the short context throughout.

| step | tokens | time | training | validation |
|--:|--:|--:|--:|--:|
{rows}
"""


def _samples(path: Path, sampling: Sampling) -> str:
    passages = []
    for number, (prompt, text, ended) in enumerate(write_samples(path, sampling), 1):
        passages += [f"### {number}", "Prompt:", _fenced(prompt), "Continuation:", _fenced(text)]
        if not ended:
            passages.append("(cut at the token limit)")
    settings = (
        f"Unedited, one per prompt, none left out: temperature {sampling.temperature}, "
        f"top-p {sampling.top_p}, seed {sampling.seed}, at most {sampling.max_tokens} tokens."
    )
    return "\n\n".join(("## Samples", settings, *passages))


def _fenced(text: str) -> str:
    newlines = "\n"
    return f"```text\n{text.strip(newlines)}\n```"


def loss_curve_svg(curve: list[Measurement], width: int = 640, height: int = 320) -> str:
    """Returns a chart of both losses against tokens, as an SVG document.

    The vertical axis ends a fifth above the largest validation loss after the first measurement, so
    that the first steep fall does not flatten the rest.
    """
    left, right, top, bottom = 48, 12, 28, 36
    most_tokens = curve[-1].tokens
    ceiling = max(point.validation_loss for point in curve[1:] or curve) * 1.2
    step = _tick_step(ceiling)

    def x(tokens: float) -> float:
        return left + (width - left - right) * tokens / most_tokens

    def y(loss: float) -> float:
        return top + (height - top - bottom) * (1 - min(loss, ceiling) / ceiling)

    def line(losses: list[float], colour: str) -> str:
        pairs = zip(curve, losses, strict=True)
        points = " ".join(f"{x(point.tokens):.1f},{y(loss):.1f}" for point, loss in pairs)
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def label(text: str, at_x: float, at_y: float, anchor: str, colour: str = "#57606a") -> str:
        return (
            f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" fill="{colour}">'
            f"{escape(text)}</text>"
        )

    grid = []
    for index in range(int(ceiling / step) + 1):
        height_at = y(index * step)
        grid.append(
            f'<line x1="{left}" x2="{width - right}" y1="{height_at:.1f}" y2="{height_at:.1f}" '
            'stroke="#d0d7de"/>'
        )
        grid.append(label(f"{index * step:.1f}", left - 8, height_at + 4, "end"))
    for quarter in range(5):
        tokens = most_tokens * quarter / 4
        anchor = "end" if quarter == 4 else "middle"
        grid.append(label(f"{tokens / 1e6:.1f} M", x(tokens), height - 14, anchor))
    body = "\n".join(
        (
            *grid,
            line([point.training_loss for point in curve], "#bf8700"),
            line([point.validation_loss for point in curve], "#0969da"),
            label("nats per token, against tokens", left, 16, "start"),
            label("training", width - right - 80, 16, "end", "#bf8700"),
            label("validation", width - right, 16, "end", "#0969da"),
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _tick_step(ceiling: float) -> float:
    """Returns the distance of grid lines for which there are four to ten of them."""
    return next(step for step in (0.1, 0.2, 0.5, 1.0, 2.0) if ceiling / step <= 10 or step == 2.0)
