"""Tensors without torch: a name to annotate with, and the tensors pipeline stages hand on.

Importing this module never imports torch. Whoever holds a tensor has torch loaded already, so the
methods here reach it through the tensors themselves wherever they can.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import ItemsView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor as Tensor  # so spelled, it may be imported from here
else:

    class _TensorType(type):
        """Lets `isinstance(x, Tensor)` ask the real torch, if anything has loaded it."""

        def __instancecheck__(cls, instance: object) -> bool:
            real = getattr(sys.modules.get("torch"), "Tensor", None)
            return real is not None and isinstance(instance, real)

    class Tensor(metaclass=_TensorType):
        """Annotation for a `torch.Tensor`; every instance of that class is an instance of this."""


@dataclass(init=False, repr=False, eq=False)
class IntermediateTensors:
    """Named tensors that a pipeline stage other than the last passes to the next one.

    Usually `hidden_states` and `residual`, each of shape ``[num_tokens, hidden_size]``.

    Attributes:
        tensors: The tensors by name.
        kv_connector_output: What the stage's KV connector reported, or None. Slices keep it;
            equality and `repr` leave it out, and on the wire it is present only when set.
    """

    tensors: dict[str, Tensor | None]
    kv_connector_output: Any = None

    # Written out because Dynamo locates the class through the file of its `__init__`, and the one
    # a dataclass generates belongs to no file.
    def __init__(self, tensors: dict[str, Tensor | None], kv_connector_output: Any = None) -> None:
        self.tensors = tensors
        if kv_connector_output is not None:
            self.kv_connector_output = kv_connector_output

    def __getitem__(self, key: str | slice) -> Any:
        """The tensor of that name, or, for a slice, all tensors sliced along dimension 0."""
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
        return self.tensors.items()

    def __len__(self) -> int:
        return len(self.tensors)

    def __eq__(self, other: object) -> bool:
        """Same class, same names, and element for element the same tensors."""
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
    """Both tensors, one after the other along dimension 0."""
    joined: Tensor = importlib.import_module("torch").cat((first, second))
    return joined
