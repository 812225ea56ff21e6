"""The kinds of devices that the engine runs on: the only code that is specific to one of them.

Other modules call the functions here, or ask `platform_of` for the `Platform` of a device.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine_stub.platforms.cpu import CpuPlatform
from engine_stub.platforms.cuda import CudaPlatform
from engine_stub.platforms.interface import Platform

_PLATFORMS: dict[str, Platform] = {"cpu": CpuPlatform(), "cuda": CudaPlatform()}


def platform_of(device: torch.device | str) -> Platform:
    """Returns the platform of a device."""
    return _PLATFORMS[torch.device(device).type]


def to_device(
    values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Returns a tensor of `values` on `device`; the host does not wait for the copy."""
    if not values:
        return torch.empty(0, dtype=dtype, device=device)
    return _host_tensor(values, dtype, device).to(device, non_blocking=True)


def copy_to_device(values: Sequence[int], destination: Tensor) -> None:
    """Copies `values` to an int64 tensor of the same length; the host does not wait."""
    # The allocator of pinned memory reuses it only after the copy is done.
    source = _host_tensor(values, torch.int64, destination.device)
    destination.copy_(source, non_blocking=True)


def to_host(*tensors: Tensor) -> list[list[Any]]:
    """Returns what `tolist` gives for each of `tensors`, all on one device; waits once."""
    # torch places the copies in pinned memory.
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    device = tensors[0].device
    _PLATFORMS[device.type].synchronize(device)
    return [copy.tolist() for copy in copies]


def host_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns zeros in host memory from which `device` copies without waiting."""
    is_pinned = _PLATFORMS[device.type].has_own_memory and 0 not in shape
    return torch.zeros(*shape, dtype=dtype, pin_memory=is_pinned)


def _host_tensor(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype is torch.int64:
        # Right after a forward pass, `torch.tensor` takes three times as long.
        tensor = torch.frombuffer(array("q", values), dtype=dtype)
    else:
        tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory() if _PLATFORMS[device.type].has_own_memory else tensor


def resolve_device(name: str) -> str:
    """Returns the device to run on; "auto" prefers a GPU.

    Raises:
        ValueError: There is no such device on this machine.
    """
    if name == "auto":
        return "cuda" if _PLATFORMS["cuda"].device_count() else "cpu"
    kind = name.partition(":")[0]
    if kind not in _PLATFORMS:
        raise ValueError(f"device must be auto, {' or '.join(_PLATFORMS)}, got {name!r}")
    count = _PLATFORMS[kind].device_count()
    if (torch.device(name).index or 0) >= count:
        raise ValueError(f"device {name} was asked for, but torch sees {count} of them")
    return name


def resolve_dtype(name: str, device: str, checkpoint_dtype: str) -> str:
    """Returns the name of the dtype to run in; "auto" is the platform's choice.

    Args:
        name: "auto" or the name of a torch dtype.
        device: The device to run on, as `resolve_device` returns it.
        checkpoint_dtype: The dtype of the model's weights on disk.

    Raises:
        ValueError: torch has no floating-point type of this name.
    """
    if name == "auto":
        name = platform_of(device).default_dtype(checkpoint_dtype)
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be auto or a floating-point type of torch, got {name!r}")
    return name
