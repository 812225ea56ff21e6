"""The CPU platform: there is nothing to copy, to capture or to wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NoReturn

import torch
from torch import Tensor

from engine_stub.platforms.interface import ForwardTimer, Platform, host_tensor


class CpuPlatform(Platform):
    """The host's own processor and memory."""

    distributed_backend = "gloo"
    # The memory is shared with all other processes, so that free memory is no guide.
    kv_pool_bytes = 256 * 2**20
    captures_graphs = False

    def device_count(self) -> int:
        return 1

    def check_device(self, name: str) -> None:
        pass

    def check_num_stages(self, num_stages: int) -> None:
        pass

    def default_dtype(self, checkpoint_dtype: str) -> str:
        return "float32"

    def stage_device(self, rank: int) -> torch.device:
        return torch.device("cpu")

    def activate(self, device: torch.device) -> None:
        pass

    def attention_kernels(self, dtype: torch.dtype, head_dim: int) -> None:
        return None

    def to_device(
        self, values: Sequence[float], device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        return host_tensor(values, dtype)

    def copy_to_device(self, values: Sequence[int], destination: Tensor) -> None:
        destination.copy_(host_tensor(values, torch.int64))

    def to_host(self, tensors: Sequence[Tensor]) -> list[list[Any]]:
        return [each.tolist() for each in tensors]

    def host_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def make_timer(self, device: torch.device) -> ForwardTimer:
        return _ClockTimer()

    def new_graph_memory(self) -> None:
        return None

    def capture(self, step: Callable[[], Tensor], device: torch.device, memory: Any) -> NoReturn:
        raise RuntimeError("a CPU captures no graphs")

    def free_bytes(self, device: torch.device) -> NoReturn:
        raise RuntimeError("a CPU's free memory is not the engine's to measure")

    def peak_bytes(self, run: Callable[[], None], device: torch.device) -> NoReturn:
        raise RuntimeError("torch keeps no memory statistics of a CPU")


class _ClockTimer:
    def __init__(self) -> None:
        self._start = 0.0
        self._stop = 0.0

    def start(self) -> None:
        self._start = perf_counter()

    def stop(self) -> None:
        self._stop = perf_counter()

    def seconds(self) -> float:
        return self._stop - self._start
