"""What a CUDA device is treated differently in: its clock, its transfers and its memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from engine_stub.model import Decoder
from seqtop.sequence import IntermediateTensors


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
    if device.type == "cuda":
        return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
    if dtype is torch.int64 and values:
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


def copy_to_device(values: list[int], destination: Tensor) -> None:
    """Copy `values` to an int64 tensor of as many, on CUDA as `to_device` does."""
    is_pinned = destination.is_cuda
    source = torch.tensor(values, dtype=torch.int64, pin_memory=is_pinned)
    # The allocator of pinned memory gives it to nobody before the copy is done.
    destination.copy_(source, non_blocking=is_pinned)


@torch.inference_mode()
def activation_bytes(model: Decoder, num_tokens: int, num_samples: int) -> int:
    """The most memory that a step takes on the model's CUDA device besides weights and KV cache.

    Args:
        num_tokens: Of the largest step.
        num_samples: How many of them may be sampled from.
    """
    weight = next(model.parameters())
    tokens = torch.zeros(num_tokens, dtype=torch.int64, device=weight.device)
    received = None
    if not model.stage.is_first:
        size = (num_tokens, model.config.hidden_size)
        received = IntermediateTensors({"hidden_states": weight.new_zeros(size)})
    torch.cuda.reset_peak_memory_stats(weight.device)
    before = torch.cuda.memory_allocated(weight.device)
    # Attention proper needs little besides its output.
    hidden = model(tokens, tokens, lambda layer_idx, q, kv: torch.empty_like(q), received)
    if model.stage.is_last:
        # The sampler keeps a copy of the logits, their log probabilities and a sorted copy.
        logits = model.compute_logits(hidden[:num_samples])
        logits.log_softmax(-1).sort(-1)
    peak = torch.cuda.max_memory_allocated(weight.device)
    torch.cuda.empty_cache()
    return peak - before
