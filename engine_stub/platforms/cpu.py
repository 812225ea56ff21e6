"""The CPU platform: there is nothing to copy, to capture or to wait for."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from engine_stub.platforms.interface import AttentionKernels, Computation, LayerKernels, Platform
from engine_stub.platforms.torch_attention import TorchAttention
from engine_stub.platforms.torch_layers import TORCH_LAYERS


class CpuPlatform(Platform):
    """The host's own processor and memory."""

    distributed_backend = "gloo"
    has_own_memory = False

    def device_count(self) -> int:
        return 1

    def default_dtype(self, checkpoint_dtype: str) -> str:
        return "float32"

    def stage_device(self, rank: int) -> torch.device:
        return torch.device("cpu")

    def activate(self, device: torch.device) -> None:
        pass

    def attention_kernels(self, dtype: torch.dtype, head_dim: int) -> AttentionKernels:
        return TorchAttention().kernels

    def layer_kernels(self) -> LayerKernels:
        return TORCH_LAYERS

    def synchronize(self, device: torch.device) -> None:
        pass

    def mark(self) -> float:
        return perf_counter()

    def seconds_between(self, start: float, stop: float) -> float:
        return stop - start

    def graph_capture(self, device: torch.device) -> Callable[[Computation], Computation]:
        return lambda computation: computation

    def kv_pool_bytes(
        self, device: torch.device, run_largest_steps: Callable[[], None], utilization: float
    ) -> int:
        # The memory is shared with all other processes, so that free memory is no guide.
        return 256 * 2**20
