"""Batches of training text, each a pure function of the seed and the step.

Nothing is stored and nothing repeats: a run that is stopped and resumed gets the same batches as
an uninterrupted one.
"""

from __future__ import annotations

from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine_stub.train.stories import Document, draw_document
from engine_stub.train.tokenise import BOS_ID, EOS_ID

IGNORED = -100
"""The target of tokens without a loss (`torch.nn.functional.cross_entropy`)."""


def draw_batch(tokenizer: Tokenizer, stream: str, rows: int, context: int) -> tuple[Tensor, Tensor]:
    """Returns inputs and targets, each ``[rows * context]`` int64, from the text named `stream`.

    Documents are packed end to end and cut into rows. The tokens of a lead-in, which a user types,
    are inputs but not targets: the model learns only the answers.
    """
    rng = Random(stream)
    needed = rows * context + 1
    tokens: list[int] = []
    targets: list[int] = []
    while len(tokens) < needed:
        document_tokens, document_targets = _encode(tokenizer, draw_document(rng))
        tokens += document_tokens
        targets += document_targets
    return torch.tensor(tokens[: needed - 1]), torch.tensor(targets[1:needed])


def _encode(tokenizer: Tokenizer, document: Document) -> tuple[list[int], list[int]]:
    # Encoded separately, as for a model that continues a prompt.
    lead_in = [BOS_ID, *tokenizer.encode(document.lead_in, add_special_tokens=False).ids]
    story = [*tokenizer.encode(document.story, add_special_tokens=False).ids, EOS_ID]
    return lead_in + story, [IGNORED] * len(lead_in) + story
