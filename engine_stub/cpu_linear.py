"""Linear layers for inference on a CPU, where the layout of the weight decides.

A step multiplies a few rows by every weight of the model. For four rows and more, oneDNN's blocked
layout is the fastest: measured on AVX-512 cores, it takes 0.55 to 0.9 of the time. For fewer, which
only read the weight, it takes 1.3 to 1.6 times that of the plain one. So small models have both.
torch's compiler emits the same two operators when it freezes a model for the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

# The fewest rows for which the blocked layout is the faster one.
_FEWEST_PACKED_ROWS = 4
# The most bytes of weights to hold in two layouts.
_MOST_PLAIN_BYTES = 2**30


class PackedLinear(nn.Module):
    """`linear`, for inference, with its own copy of the weight.

    Args:
        keep_plain: Whether to hold on to the weight as it is, too, for steps of few rows.
    """

    def __init__(self, linear: nn.Linear, *, keep_plain: bool) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.plain = linear.weight.detach() if keep_plain else None
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [T, in_features]`` to ``[T, out_features]``."""
        if self.plain is not None and len(x) < _FEWEST_PACKED_ROWS:
            return F.linear(x, self.plain, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out


def pack_linear_weights(model: nn.Module) -> None:
    """Replace the linear layers in `model`, which is on a CPU in float32, if this torch can."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call] # torch's
        return
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    keep_plain = sum(each.weight.nbytes for each in linears) <= _MOST_PLAIN_BYTES
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child, keep_plain=keep_plain))
