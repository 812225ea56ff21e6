"""The stages of a pipeline: each runs some of a decoder's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from seqtop.sequence import IntermediateTensors


@dataclass(frozen=True)
class Stage:
    """One of `size` consecutive parts of a decoder; by default the whole decoder.

    The first stage holds the embedding, the last the final norm and the vocabulary projection.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """True if this stage holds the embedding."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """True if this stage holds the final norm and the vocabulary projection."""
        return self.rank == self.size - 1

    def layers(self, num_layers: int) -> range:
        """Returns the model's layers in this stage; stages differ by at most one layer."""
        start, end = (num_layers * rank // self.size for rank in (self.rank, self.rank + 1))
        return range(start, end)


class PipelineComm(Protocol):
    """Communication between the stages of a pipeline."""

    def receive(self, num_tokens: int) -> IntermediateTensors:
        """Waits for the output of the stage before, for a step of `num_tokens`."""
        ...

    def send(self, tensors: IntermediateTensors) -> None:
        """Sends the output of this stage to the next one."""
        ...

    def broadcast_from_last(self, numbers: list[int]) -> list[int]:
        """Returns the last stage's numbers; every stage must pass a list of the same length."""
        ...
