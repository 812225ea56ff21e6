"""The CUDA platform: streams, events, graphs and memory statistics."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from engine_stub.platforms.interface import AttentionKernels, Computation, LayerKernels, Platform

# The first one that computes in bfloat16, Ampere's: T4, V100 and RTX 20 do not.
_BFLOAT16_CAPABILITY = (8, 0)
# Triton comes with torch's builds for CUDA on Linux.
_NO_TRITON = "device cuda needs Triton, which is not installed"


class CudaPlatform(Platform):
    """GPUs that torch drives through CUDA."""

    distributed_backend = "nccl"
    has_own_memory = True

    def device_count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def default_dtype(self, checkpoint_dtype: str) -> str:
        if checkpoint_dtype != "bfloat16" or not self.device_count():
            return checkpoint_dtype
        major, minor = torch.cuda.get_device_capability()
        if (major, minor) >= _BFLOAT16_CAPABILITY:
            return checkpoint_dtype
        logging.getLogger("engine_stub").warning(
            "float16 is used instead of the model's bfloat16, which needs compute capability 8.0:"
            " the device has %d.%d",
            major,
            minor,
        )
        return "float16"

    def stage_device(self, rank: int) -> torch.device:
        if rank >= self.device_count():
            raise ValueError(
                f"each pipeline stage needs a CUDA device, and torch sees {self.device_count()}"
            )
        return torch.device("cuda", rank)

    def activate(self, device: torch.device) -> None:
        if device.index is not None:
            # Events, streams and graphs belong to the device that is current.
            torch.cuda.set_device(device)

    def attention_kernels(self, dtype: torch.dtype, head_dim: int) -> AttentionKernels:
        try:
            from engine_stub.platforms.triton_attention import paged_attention
        except ImportError as error:
            raise ValueError(_NO_TRITON) from error
        # The limits of FlashAttention, which torch's kernel for prompts is.
        is_flash = dtype.itemsize == 2 and head_dim % 8 == 0 and head_dim <= 256
        is_flash = is_flash and torch.cuda.get_device_capability() >= (8, 0)
        return AttentionKernels(paged_attention, _prompt_kernel() if is_flash else None)

    def layer_kernels(self) -> LayerKernels:
        try:
            from engine_stub.platforms.triton_layers import TRITON_LAYERS
        except ImportError as error:
            raise ValueError(_NO_TRITON) from error
        return TRITON_LAYERS

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds_between(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1000

    def graph_capture(self, device: torch.device) -> Callable[[Computation], Computation]:
        # Memory is reused within a stream only, so that all graphs share one.
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        memory = torch.cuda.graph_pool_handle()

        def capture(computation: Computation) -> Computation:
            # Whatever torch, its libraries and Triton set up on first use cannot be captured.
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                computation()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as those of NCCL, may go on using the device.
            options: Any = {"stream": stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(graph, pool=memory, **options):
                output = computation()

            def replay() -> Tensor:
                graph.replay()
                return output

            return replay

        return capture

    def kv_pool_bytes(
        self, device: torch.device, run_largest_steps: Callable[[], None], utilization: float
    ) -> int:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run_largest_steps()
        taken = torch.cuda.max_memory_allocated(device) - before
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        # What is not to be used is for graphs, whose intermediate results are no larger than those
        # of the largest steps, and for what allocators leave unused.
        return int(total * utilization) - (total - free) - taken


def _prompt_kernel() -> Callable[[Tensor, Tensor, Tensor, Tensor, int, int | None], Tensor] | None:
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
