"""How a decoder is cut into pipeline stages, and what they see of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from seqtop.sequence import IntermediateTensors


@dataclass(frozen=True)
class Stage:
    """One of `size` parts of a decoder, in order; by default the whole.

    The first holds the embedding, the last the final norm and the projection onto the vocabulary.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def layers(self, num_layers: int) -> range:
        """Which of a model's layers it holds: as many as the others, give or take one."""
        start, end = (num_layers * rank // self.size for rank in (self.rank, self.rank + 1))
        return range(start, end)


class PipelineComm(Protocol):
    """The stages before and after one's own."""

    def receive(self, num_tokens: int) -> IntermediateTensors:
        """What the stage before made of a step of `num_tokens`; waits for it."""
        ...

    def send(self, tensors: IntermediateTensors) -> None:
        """Hand a step on to the stage after."""
        ...

    def agree(self, numbers: list[int]) -> list[int]:
        """The last stage's numbers, in every stage; all must call it with as many."""
        ...
