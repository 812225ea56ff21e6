"""A CUDA device played by the CPU, to run the engine's CUDA path where there is no GPU.

Tensors that should be on the device are of a type of their own, `OnDevice`, and whatever is called
on them is looked at first: operands from both sides are an error, as on a GPU, and whatever would
make the host wait for the device is written down. Graphs are captured and replayed, too: a capture
records calls with their operands, so that a replay sees nothing but what is in the same memory by
then. What this cannot show is anything about kernels: what they support, how they round, how long
they take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from engine_stub.platforms.cuda import CudaPlatform
from engine_stub.platforms.interface import AttentionKernels, LayerKernels, QueryTiles
from engine_stub.platforms.torch_layers import TORCH_LAYERS
from tests.support.attention_kernels import KERNELS

DEVICE = torch.device("cuda", 0)
_TOTAL_BYTES = 2**26

# What gives the host values.
_READS = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "equal"}
# What has a result whose size depends on values.
_COUNTS = {"nonzero", "argwhere", "masked_select", "unique", "bincount"}
_MOVES = {"to", "cuda", "cpu"}


class OnDevice(Tensor):
    """A tensor on the device that is simulated."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


class DeviceGenerator(torch.Generator):
    """Random numbers made on the device."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        if torch.device(device).type == "cpu":
            return _HostGenerator()
        return super().__new__(cls)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE


_HostGenerator = torch.Generator


class DeviceError(AssertionError):
    """An error that a GPU would have raised."""


class Graph:
    """Calls with their operands, as `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        with torch._C.DisableTorchFunction():
            for func, args, kwargs, results in self.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class SimulatedCuda(TorchFunctionMode):
    """Stands in for the device, while it is entered.

    Attributes:
        waits: Where in the engine the host waited for the device, in order.
        graphs: Those that were captured.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.graphs: list[Graph] = []
        self._capturing: Graph | None = None
        self._pinned: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        operands = [
            tree_leave
            for tree_leave in tree_leaves((args, kwargs))
            if isinstance(tree_leave, Tensor)
        ]
        if name in _MOVES and (target := _target(name, args, kwargs)) != args[0].device.type:
            return self._move(args[0], target, args, kwargs)
        to_device = any(isinstance(operand, OnDevice) for operand in operands)
        pins = kwargs.pop("pin_memory", False)
        if name == "pin_memory":
            assert not to_device
            func, pins = Tensor.clone, True
        if name in _MOVES:
            args, kwargs = tree_map(
                lambda value: "cpu" if _is_place(value) else value, (args, kwargs)
            )
        elif name == "copy_":
            self._copy(args, kwargs)
        elif kwargs.get("device") is not None:
            to_device = torch.device(kwargs["device"]).type == "cuda"
            kwargs["device"] = "cpu" if to_device else kwargs["device"]
            if name == "tensor" and to_device:
                self._wait("a tensor is made from values in pageable memory")
        elif to_device:
            self._check(name, args, kwargs, operands)
        with torch._C.DisableTorchFunction():
            results = func(*args, **kwargs)
        if name in _READS:
            return results
        if pins:
            self._pinned.add(results.untyped_storage().data_ptr())
        if to_device:
            results = tree_map(_on_device, results)
            if self._capturing is not None:
                self._capturing.calls.append((func, args, kwargs, results))
        return results

    def _check(self, name: str, args: Any, kwargs: Any, operands: list[Tensor]) -> None:
        """Raises `DeviceError` if operands on the device are combined with ones that are not."""
        if name in _READS | _COUNTS:
            self._wait(f"{name} reads the device")
        if name in ("__getitem__", "__setitem__"):
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(index, list) for index in indices):
                self._wait("an index is a list, which is copied from pageable memory")
            if any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices):
                self._wait("an index is a mask, whose ones are counted")
            assigns = name == "__setitem__" and any(isinstance(index, Tensor) for index in indices)
            if assigns and not isinstance(args[2], OnDevice):
                # torch makes a tensor of the number first, on the host.
                self._wait("a number is assigned through an index, and copied for that")
        foreign = [
            operand for operand in operands if not isinstance(operand, OnDevice) and operand.dim()
        ]
        if foreign:
            raise DeviceError(f"{name} has operands on the device and on the host")
        generator = kwargs.get("generator")
        if generator is not None and generator.device != DEVICE:
            raise DeviceError(f"{name} on the device has a generator on the host")

    def _move(self, source: Tensor, target: str, args: Any, kwargs: Any) -> Tensor:
        """A copy on the other side."""
        if target == "meta" or source.is_meta:
            raise DeviceError("nothing but modules is moved from or to the meta device")
        self._transfer(source, kwargs.get("non_blocking", False))
        dtypes = [
            value for value in (*args[1:], *kwargs.values()) if isinstance(value, torch.dtype)
        ]
        with torch._C.DisableTorchFunction():
            copied: Tensor = source.as_subclass(Tensor).clone()
            for dtype in dtypes:
                copied = copied.to(dtype)
        return copied if target == "cpu" else copied.as_subclass(OnDevice)

    def _copy(self, args: Any, kwargs: Any) -> None:
        destination, source = args[0], args[1]
        if isinstance(destination, OnDevice) != isinstance(source, OnDevice):
            host = source if isinstance(destination, OnDevice) else destination
            non_blocking = kwargs.get("non_blocking", False) or True in args[2:]
            self._transfer(host, non_blocking)

    def _transfer(self, host: Tensor, non_blocking: bool) -> None:
        """A copy from or to the host."""
        if self._capturing is not None:
            raise DeviceError("what a captured copy from or to the host finds there may be gone")
        if not non_blocking:
            self._wait("a copy is waited for")
        elif (
            not isinstance(host, OnDevice) and host.untyped_storage().data_ptr() not in self._pinned
        ):
            self._wait("a copy is from or to pageable memory")

    def _wait(self, why: str) -> None:
        if self._capturing is not None:
            raise DeviceError(f"while a graph is captured, {why}")
        frame = sys._getframe()
        while "engine_stub" not in frame.f_code.co_filename and frame.f_back is not None:
            frame = frame.f_back
        self.waits.append(f"{frame.f_code.co_name}: {why}")

    def kernels(self, kernels: AttentionKernels) -> AttentionKernels:
        """Kernels that run on the device: in one call, whatever they read and write."""
        prompts = kernels.prompts and self._as_kernel(kernels.prompts)
        return AttentionKernels(self._as_kernel(kernels.paged), prompts)

    def layer_kernels(self, kernels: LayerKernels) -> LayerKernels:
        """Likewise."""
        return LayerKernels(
            *(self._as_kernel(getattr(kernels, field.name)) for field in fields(kernels))
        )

    def _as_kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*operands: Any) -> Any:
            tensors = [
                tensor
                for operand in tree_leaves(operands)
                for tensor in (_tensors(operand) if isinstance(operand, QueryTiles) else (operand,))
                if isinstance(tensor, Tensor)
            ]
            if not all(isinstance(tensor, OnDevice) for tensor in tensors):
                raise DeviceError("a kernel has operands on the host")
            with torch._C.DisableTorchFunction():
                result = tree_map(_on_device, run(*operands))
            if self._capturing is not None:
                self._capturing.calls.append((run, operands, {}, result))
            return result

        def run(*operands: Any) -> Any:
            return function(*tree_map(_on_host, operands))

        return launch

    def synchronize(self) -> None:
        """As of a stream."""
        self._wait("a stream is waited for")

    @contextmanager
    def capture(self, graph: Graph, **options: Any) -> Iterator[None]:
        """As `torch.cuda.graph`."""
        assert options["pool"] == "memory"
        assert options["stream"] is not None
        self.graphs.append(graph)
        self._capturing = graph
        try:
            yield
        finally:
            self._capturing = None


def _target(name: str, args: Any, kwargs: Any) -> str:
    """The kind of device that a tensor is to be moved to."""
    if name != "to":
        return name
    places = [value for value in (*args[1:], *kwargs.values()) if _is_place(value)]
    return str(torch.device(places[0]).type if places else args[0].device.type)


def _on_device(result: Any) -> Any:
    return result.as_subclass(OnDevice) if type(result) is Tensor else result


def _tensors(tiles: QueryTiles) -> list[Any]:
    return [getattr(tiles, field.name) for field in fields(tiles)]


def _on_host(operand: Any) -> Any:
    """The same memory as a kernel sees it, without the type that says where it is."""
    if isinstance(operand, QueryTiles):
        return QueryTiles(*map(_on_host, _tensors(operand)))
    return operand.as_subclass(Tensor) if isinstance(operand, OnDevice) else operand


def _is_place(argument: Any) -> bool:
    return isinstance(argument, torch.device) or (
        isinstance(argument, str) and argument.split(":")[0] in ("cpu", "cuda", "meta")
    )


class _Event:
    def __init__(self, **options: Any) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: Any) -> float:
        return 1.0


@contextmanager
def simulated_cuda(
    monkeypatch: pytest.MonkeyPatch,
    kernels: AttentionKernels = KERNELS,
    layer_kernels: LayerKernels = TORCH_LAYERS,
) -> Iterator[SimulatedCuda]:
    """Replaces the functions of torch that use a CUDA device by those of the simulated one."""
    device = SimulatedCuda()
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=device.synchronize)

    @contextmanager
    def on_stream(stream: Any) -> Iterator[None]:
        yield

    for name, stand_in in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "Event": _Event,
        "Stream": lambda *_: stream,
        "current_stream": lambda *_: stream,
        "stream": on_stream,
        "graph_pool_handle": lambda: "memory",
        "CUDAGraph": Graph,
        "graph": device.capture,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (_TOTAL_BYTES, _TOTAL_BYTES),
        "reset_peak_memory_stats": lambda *_: None,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 2**20,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch, "Generator", DeviceGenerator)
    on_device = device.kernels(kernels)
    monkeypatch.setattr(CudaPlatform, "attention_kernels", lambda *_: on_device)
    layers_on_device = device.layer_kernels(layer_kernels)
    monkeypatch.setattr(CudaPlatform, "layer_kernels", lambda _: layers_on_device)
    with device:
        yield device
