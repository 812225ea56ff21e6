"""Tensor types that do not import torch: an annotation, and the tensors of pipeline stages.

Importing this module never imports torch. Code that has a tensor has imported torch, so methods
here call methods of the tensors where possible.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import ItemsView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor as Tensor  # this form re-exports the name
else:

    class _TensorType(type):
        """Makes `isinstance(x, Tensor)` use the real class, if torch has been imported."""

        def __instancecheck__(cls, instance: object) -> bool:
            real = getattr(sys.modules.get("torch"), "Tensor", None)
            return real is not None and isinstance(instance, real)

    class Tensor(metaclass=_TensorType):
        """An annotation for `torch.Tensor`, whose instances are instances of this class too."""


@dataclass(init=False, repr=False, eq=False)
class IntermediateTensors:
    """Named tensors that a pipeline stage passes to the next one.

    Usually `hidden_states` and `residual`, each of shape ``[num_tokens, hidden_size]``.

    Attributes:
        tensors: The tensors by name.
        kv_connector_output: The report of the stage's KV connector, or None. Slices keep it;
            equality and `repr` ignore it, and it is encoded only if set.
    """

    tensors: dict[str, Tensor | None]
    kv_connector_output: Any = None

    # Written by hand, as Dynamo finds the class by the file of its `__init__`, and a generated one
    # has no file.
    def __init__(self, tensors: dict[str, Tensor | None], kv_connector_output: Any = None) -> None:
        self.tensors = tensors
        if kv_connector_output is not None:
            self.kv_connector_output = kv_connector_output

    def __getitem__(self, key: str | slice) -> Any:
        """Returns the tensor of a name or, for a slice, all tensors sliced along dimension 0."""
        if isinstance(key, str):
            return self.tensors[key]
        if isinstance(key, slice):
            sliced = {
                name: None if tensor is None else tensor[key]
                for name, tensor in self.tensors.items()
            }
            return self.__class__(sliced, self.kv_connector_output)
        raise TypeError(f"index with a name or a slice, not with {type(key).__name__}")

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.tensors[key] = value

    def items(self) -> ItemsView[str, Tensor | None]:
        """Returns names and tensors, as `dict.items` does."""
        return self.tensors.items()

    def __len__(self) -> int:
        return len(self.tensors)

    def __eq__(self, other: object) -> bool:
        """Compares class, names and the elements of all tensors."""
        if not isinstance(other, self.__class__):
            return False
        if self.tensors.keys() != other.tensors.keys():
            return False
        return all(_same(tensor, other.tensors[name]) for name, tensor in self.tensors.items())

    def __repr__(self) -> str:
        return f"IntermediateTensors(tensors={self.tensors})"


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.equal(right)


def concatenate(first: Tensor, second: Tensor) -> Tensor:
    """Returns both tensors concatenated along dimension 0."""
    joined: Tensor = importlib.import_module("torch").cat((first, second))
    return joined
