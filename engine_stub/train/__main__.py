"""The command ``python -m engine_stub.train``, which trains the bundled model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from engine_stub.config import DEFAULT_MODEL
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.train.card import write_card
from engine_stub.train.export import export
from engine_stub.train.loop import Recipe, train
from engine_stub.train.samples import Sampling
from engine_stub.train.tokenise import BOS_ID, EOS_ID, train_tokenizer

VOCAB_SIZE = 2048
TOKENIZER_DOCUMENTS = 6000

MODEL = ModelConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    bos_token_id=BOS_ID,
    eos_token_id=(EOS_ID,),
)

_DESCRIPTION = """\
Generate stories, train the bundled model on them and write it in Hugging Face layout, with its
tokenizer, its loss curve and samples of what it writes.
"""
_EPILOG = """\
examples:
  python -m engine_stub.train                              the model that ships
  python -m engine_stub.train --checkpoint stories.pt      the same, can be stopped and resumed
  python -m engine_stub.train --steps 3 --no-compile --out tiny  a run of seconds
"""


def main(argv: list[str] | None = None) -> int:
    """Trains and exports; returns the exit status."""
    options = _parser().parse_args(argv)
    recipe = Recipe(steps=options.steps, batch_tokens=options.batch_tokens, seed=options.seed)
    if recipe.batch_tokens % recipe.long_context:
        print(f"--batch-tokens must be a multiple of {recipe.long_context}", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    tokenizer = train_tokenizer(VOCAB_SIZE, TOKENIZER_DOCUMENTS, recipe.seed)
    decoder, curve = train(
        MODEL,
        recipe,
        tokenizer,
        checkpoint=options.checkpoint,
        compiled=options.compile,
        measure_every=min(options.measure_every, recipe.steps),
    )
    export(decoder, tokenizer, options.out)
    write_card(
        options.out,
        decoder,
        recipe,
        curve,
        _command(recipe),
        options.threads,
        Sampling(max_tokens=options.sample_tokens),
    )
    print(f"written to {options.out}")
    return 0


def _command(recipe: Recipe) -> str:
    """Returns the shortest command that trains with `recipe`."""
    defaults = Recipe()
    changed = [
        f"--{option.replace('_', '-')} {getattr(recipe, option)}"
        for option in ("steps", "batch_tokens", "seed")
        if getattr(recipe, option) != getattr(defaults, option)
    ]
    return " ".join(("python -m engine_stub.train", *changed))


def _parser() -> argparse.ArgumentParser:
    defaults = Recipe()
    parser = argparse.ArgumentParser(
        prog="python -m engine_stub.train",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_MODEL, help="directory to write (%(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=defaults.steps, help="optimizer steps (%(default)s)"
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=defaults.batch_tokens,
        help="tokens per step (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, help="of weights and text (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument(
        "--measure-every",
        type=int,
        default=200,
        metavar="STEPS",
        help="validate and save (%(default)s)",
    )
    parser.add_argument(
        "--sample-tokens",
        type=int,
        default=Sampling().max_tokens,
        metavar="TOKENS",
        help="longest sample in the README (%(default)s)",
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="file that keeps the state; resumed if it exists"
    )
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="use torch.compile"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
