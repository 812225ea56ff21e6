"""Outputs of a step of the model: sampled tokens, log probabilities, pooled data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

import msgspec

from seqtop.sequence.tensors import Tensor


class Logprob(msgspec.Struct, gc=False):
    """A token's log probability (natural), its vocabulary rank (from 1) and its text.

    There is one for each token, so that it is a struct that the garbage collector need not know.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs: TypeAlias = list[dict[int, Logprob] | None]
"""For each prompt token, candidates by token id; None for the first, which is not predicted."""

SampleLogprobs: TypeAlias = list[dict[int, Logprob]]
"""For each output token, candidates by token id, including the sampled one."""


class SequenceOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """One sampled token.

    Equality ignores the embedding; comparison with another type raises NotImplementedError.

    Attributes:
        parent_seq_id: The sequence that the token continues.
        output_token: The token's id.
        logprobs: Candidates by token id, including the sampled one.
        output_embed: The token's embedding, ``[hidden_size]``, if embeddings are in use.
    """

    parent_seq_id: int
    output_token: int
    logprobs: dict[int, Logprob]
    output_embed: Tensor | None = None

    def __repr__(self) -> str:
        shape = None if self.output_embed is None else self.output_embed.shape
        return (
            f"SequenceOutput(parent_seq_id={self.parent_seq_id}, "
            f"output_token={self.output_token}, "
            f"output_embed.shape={shape}, "
            f"logprobs={self.logprobs})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SequenceOutput):
            raise NotImplementedError
        return (self.parent_seq_id, self.output_token, self.logprobs) == (
            other.parent_seq_id,
            other.output_token,
            other.logprobs,
        )


class SequenceGroupOutput(ABC):
    """The output of any kind of model for one sequence group."""

    @abstractmethod
    def __repr__(self) -> str: ...

    @abstractmethod
    def __eq__(self, other: object) -> bool: ...


class CompletionSequenceGroupOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """The tokens sampled for a sequence group in one step.

    Equality ignores the step; comparison with another type raises NotImplementedError.

    Attributes:
        samples: One sample per sequence.
        prompt_logprobs: One entry per prompt token computed in this step, if requested.
        step_index: The step within a multi-step run.
    """

    __metaclass__: ClassVar[type] = SequenceGroupOutput
    samples: list[SequenceOutput]
    prompt_logprobs: PromptLogprobs | None
    step_index: int | None = 0

    def __repr__(self) -> str:
        return (
            f"CompletionSequenceGroupOutput(samples={self.samples}, "
            f"prompt_logprobs={self.prompt_logprobs})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompletionSequenceGroupOutput):
            raise NotImplementedError
        return self.samples == other.samples and self.prompt_logprobs == other.prompt_logprobs


class PoolingSequenceGroupOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """The pooled data of one sequence group, usually a tensor.

    Comparison with another type raises NotImplementedError.
    """

    __metaclass__: ClassVar[type] = SequenceGroupOutput
    data: Any

    def __repr__(self) -> str:
        return f"PoolingSequenceGroupOutput(data={self.data})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PoolingSequenceGroupOutput):
            raise NotImplementedError
        return bool(self.data == other.data)


class PoolerOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """The pooled data of a batch, one entry per sequence group."""

    outputs: list[PoolingSequenceGroupOutput]

    def __getitem__(self, idx: int) -> PoolingSequenceGroupOutput:
        return self.outputs[idx]

    def __setitem__(self, idx: int, value: PoolingSequenceGroupOutput) -> None:
        self.outputs[idx] = value

    def __len__(self) -> int:
        return len(self.outputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, self.__class__) and self.outputs == other.outputs


# Structs have a metaclass of their own and so cannot derive from an ABC.
SequenceGroupOutput.register(CompletionSequenceGroupOutput)
SequenceGroupOutput.register(PoolingSequenceGroupOutput)
