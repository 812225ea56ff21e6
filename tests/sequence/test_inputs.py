"""Inputs of a sequence."""

from typing import Any

import torch

from seqtop.sequence import (
    Logprob,
    MultiModalInputs,
    MultiModalKwargs,
    PlaceholderRange,
    Sequence,
    embeds_inputs,
    token_inputs,
)


def sequence(prompt: list[int] | None = None, **options: Any) -> Sequence:
    return Sequence(0, token_inputs(prompt or [1, 2, 3], "one two three"), 4, **options)


def test_token_inputs() -> None:
    assert token_inputs([1]) == {"type": "token", "prompt_token_ids": [1]}
    full = token_inputs([1], "one", [0])
    assert full["prompt"] == "one"
    seq = Sequence(0, full, 4)
    assert seq.token_type_ids == [0]
    assert sequence().token_type_ids == []
    assert Sequence(0, token_inputs([1]), 4).prompt is None
    assert seq.multi_modal_data == {}
    assert seq.multi_modal_placeholders == {}


def test_embeds_inputs() -> None:
    embeds = torch.ones(3, 2)
    seq = Sequence(0, embeds_inputs(embeds), 4)
    assert seq.prompt is None
    assert seq.prompt_token_ids == [0, 0, 0]
    assert seq.token_type_ids == []
    assert seq.data.prompt_embeds is embeds
    seq.append_token_id(7, {7: Logprob(-0.5)}, torch.zeros(2))
    assert seq.data.get_token_embeddings().shape == (4, 2)


def test_multi_modal_inputs() -> None:
    placeholders = {"image": [PlaceholderRange(0, 2)]}
    inputs = MultiModalInputs(
        type="multimodal",
        prompt_token_ids=[5, 5],
        mm_kwargs=MultiModalKwargs(pixels=1),
        mm_placeholders=placeholders,
    )
    seq = Sequence(0, inputs, 4)
    assert seq.multi_modal_data == {"pixels": 1}
    assert seq.multi_modal_placeholders == placeholders


def test_placeholder_ranges() -> None:
    mask = torch.tensor([True, False, True])
    assert PlaceholderRange(1, 3).get_num_embeds() == 3
    assert PlaceholderRange(1, 3, mask).get_num_embeds() == 2
    assert PlaceholderRange(1, 3, mask) == PlaceholderRange(1, 3, mask.clone())
    assert PlaceholderRange(1, 3, mask) != PlaceholderRange(1, 3, ~mask)
    assert PlaceholderRange(1, 3, mask) != PlaceholderRange(1, 3)
    assert PlaceholderRange(1, 3) != PlaceholderRange(2, 3)
    assert PlaceholderRange(1, 3) != (1, 3, None)
    assert hash(PlaceholderRange(1, 3)) == hash(PlaceholderRange(1, 3))
