"""The CUDA platform: streams, events, pinned memory, graphs and memory statistics."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from engine_stub.platforms.interface import (
    AttentionKernels,
    CapturedStep,
    ForwardTimer,
    Platform,
    PromptKernel,
    host_tensor,
)

_logger = logging.getLogger(__name__)


class CudaPlatform(Platform):
    """GPUs that torch drives through CUDA."""

    distributed_backend = "nccl"
    kv_pool_bytes = None
    captures_graphs = True

    def device_count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def check_device(self, name: str) -> None:
        count = self.device_count()
        if not count:
            raise ValueError("device cuda was asked for, but torch sees no CUDA device")
        if (torch.device(name).index or 0) >= count:
            raise ValueError(f"device {name} was asked for, but torch sees {count} of them")

    def check_num_stages(self, num_stages: int) -> None:
        if num_stages > torch.cuda.device_count():
            raise ValueError(
                f"pipeline_parallel_size={num_stages} needs as many CUDA devices, and torch sees "
                f"{torch.cuda.device_count()}"
            )

    def default_dtype(self, checkpoint_dtype: str) -> str:
        return checkpoint_dtype

    def stage_device(self, rank: int) -> torch.device:
        return torch.device("cuda", rank)

    def activate(self, device: torch.device) -> None:
        # torch prefers cuDNN's attention on some GPUs, but it is built for each new shape, which
        # takes tenths of a second, and steps with prompts hardly ever have the same shape twice.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if device.index is not None:
            # Events, streams and graphs belong to the device that is current.
            torch.cuda.set_device(device)

    def attention_kernels(self, dtype: torch.dtype, head_dim: int) -> AttentionKernels | None:
        try:
            # Triton comes with torch's builds for CUDA on Linux.
            from engine_stub.platforms.triton_attention import paged_attention
        except ImportError:
            _logger.warning("Triton is not installed: attention copies blocks, without CUDA graphs")
            return None
        # The limits of FlashAttention, which torch's kernel for prompts is.
        is_flash = dtype.itemsize == 2 and head_dim % 8 == 0 and head_dim <= 256
        is_flash = is_flash and torch.cuda.get_device_capability() >= (8, 0)
        return AttentionKernels(paged_attention, _prompt_kernel() if is_flash else None)

    def to_device(
        self, values: Sequence[float], device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        return host_tensor(values, dtype).pin_memory().to(device, non_blocking=True)

    def copy_to_device(self, values: Sequence[int], destination: Tensor) -> None:
        # The allocator of pinned memory reuses it only after the copy is done.
        destination.copy_(host_tensor(values, torch.int64).pin_memory(), non_blocking=True)

    def to_host(self, tensors: Sequence[Tensor]) -> list[list[Any]]:
        # torch places the copies in pinned memory.
        copies = [each.to("cpu", non_blocking=True) for each in tensors]
        torch.cuda.current_stream(tensors[0].device).synchronize()
        return [each.tolist() for each in copies]

    def host_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, pin_memory=0 not in shape)

    def make_timer(self, device: torch.device) -> ForwardTimer:
        return _EventTimer()

    def new_graph_memory(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(
        self, step: Callable[[], Tensor], device: torch.device, memory: Any
    ) -> CapturedStep:
        # Whatever torch, its libraries and Triton set up on first use cannot be captured. Memory is
        # reused within a stream only, so that all graphs share one.
        stream = _warm_up_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those of NCCL, may go on using the device.
        with torch.cuda.graph(graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
            output = step()
        return _CudaGraph(graph, output)

    def free_bytes(self, device: torch.device) -> int:
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]

    def peak_bytes(self, run: Callable[[], None], device: torch.device) -> int:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before


@lru_cache
def _warm_up_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _prompt_kernel() -> PromptKernel | None:
    """Returns torch's attention of sequences of different lengths; None before torch 2.13."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    if not {"window_size", "enable_gqa"} <= signature(varlen_attn).parameters.keys():
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int, window: int | None
    ) -> Tensor:
        sizes = (starts, starts, longest, longest)
        seen = (-1 if window is None else window - 1, 0)
        out = varlen_attn(q, k, v, *sizes, window_size=seen, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out

    return attend


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph = graph
        self._output = output

    def replay(self) -> Tensor:
        self._graph.replay()
        return self._output


class _EventTimer:
    """Marks the stream with events, whose times the device takes."""

    def __init__(self) -> None:
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def start(self) -> None:
        self._start.record()

    def stop(self) -> None:
        self._stop.record()

    def seconds(self) -> float:
        self._stop.synchronize()
        return float(self._start.elapsed_time(self._stop)) / 1000
