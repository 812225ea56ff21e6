"""Outputs of the model."""

from typing import Any

import pytest
import torch

from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    Logprob,
    PoolerOutput,
    PoolingSequenceGroupOutput,
    SequenceGroupOutput,
    SequenceOutput,
)


def output(token: int = 5, parent: int = 0) -> SequenceOutput:
    return SequenceOutput(parent, token, {token: Logprob(-0.5, 1, "x")})


def test_sequence_outputs_are_equal_by_token_parent_and_logprobs() -> None:
    with_embedding = output()
    with_embedding.output_embed = torch.ones(3)
    assert output() == with_embedding
    assert output() != output(token=6)
    assert output() != output(parent=1)
    assert output() != SequenceOutput(0, 5, {5: Logprob(-0.25, 1, "x")})
    assert repr(with_embedding) == (
        "SequenceOutput(parent_seq_id=0, output_token=5, output_embed.shape=torch.Size([3]), "
        "logprobs={5: Logprob(logprob=-0.5, rank=1, decoded_token='x')})"
    )
    assert "output_embed.shape=None" in repr(output())


def test_group_outputs() -> None:
    one = CompletionSequenceGroupOutput([output()], None)
    assert one == CompletionSequenceGroupOutput([output()], None, step_index=3)
    assert one != CompletionSequenceGroupOutput([], None)
    assert one != CompletionSequenceGroupOutput([output()], [None])
    assert repr(one) == (
        f"CompletionSequenceGroupOutput(samples=[{output()!r}], prompt_logprobs=None)"
    )
    pooled = PoolingSequenceGroupOutput([1.0])
    assert pooled == PoolingSequenceGroupOutput([1.0])
    assert pooled != PoolingSequenceGroupOutput([2.0])
    assert repr(pooled) == "PoolingSequenceGroupOutput(data=[1.0])"
    for item in (one, pooled):
        assert isinstance(item, SequenceGroupOutput)
        assert type(item).__metaclass__ is SequenceGroupOutput


@pytest.mark.parametrize(
    "item",
    [output(), CompletionSequenceGroupOutput([], None), PoolingSequenceGroupOutput(1)],
    ids=lambda item: type(item).__name__,
)
def test_outputs_compare_with_their_like_only(item: Any) -> None:
    with pytest.raises(NotImplementedError):
        assert item == 5


def test_pooler_output_is_a_list_of_outputs() -> None:
    one, two = PoolingSequenceGroupOutput(1), PoolingSequenceGroupOutput(2)
    pooled = PoolerOutput([one, one])
    pooled[1] = two
    assert (pooled[0], pooled[1], len(pooled)) == (one, two, 2)
    assert pooled == PoolerOutput([one, two])
    assert pooled != PoolerOutput([two, one])
    assert pooled != [one, two]


def test_a_group_output_has_to_say_what_it_is() -> None:
    incomplete: Any = SequenceGroupOutput
    with pytest.raises(TypeError, match="abstract"):
        incomplete()
