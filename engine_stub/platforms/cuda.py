"""What a CUDA device is treated differently in: its clock, and transfers to it and from it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor


class ForwardTimer:
    """Measures a forward pass without making the host wait for it.

    On CUDA by events on the stream, elsewhere by the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = (
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            if device.type == "cuda"
            else None
        )
        self._times = [0.0, 0.0]

    def start(self) -> None:
        self._mark(0)

    def stop(self) -> None:
        self._mark(1)

    def seconds(self) -> float:
        """From `start` to `stop`; waits until the device has come so far."""
        if self._events is None:
            return self._times[1] - self._times[0]
        begin, end = self._events
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def _mark(self, index: int) -> None:
        if self._events is None:
            self._times[index] = perf_counter()
        else:
            self._events[index].record()


def to_device(
    values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """A tensor of `values` on `device`; to CUDA from pinned memory, without waiting."""
    if not values:
        return torch.empty(0, dtype=dtype, device=device)
    tensor = _tensor(values, dtype)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def copy_to_device(values: Sequence[int], destination: Tensor) -> None:
    """Copy `values` to an int64 tensor of as many, on CUDA as `to_device` does."""
    source = _tensor(values, torch.int64)
    # The allocator of pinned memory gives it to nobody before the copy is done.
    destination.copy_(source.pin_memory() if destination.is_cuda else source, non_blocking=True)


def _tensor(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    if dtype is torch.int64:
        # Right after a forward pass, `torch.tensor` takes three times as long.
        return torch.frombuffer(array("q", values), dtype=dtype)
    return torch.tensor(values, dtype=dtype)


def to_host(*tensors: Tensor) -> list[list[Any]]:
    """What `tolist` gives for each of `tensors`, which lie on one device; waits for it once."""
    if tensors[0].is_cuda:
        # They go to pinned memory, which is torch's to choose.
        copies = [each.to("cpu", non_blocking=True) for each in tensors]
        torch.cuda.current_stream(tensors[0].device).synchronize()
        tensors = (*copies,)
    return [each.tolist() for each in tensors]
