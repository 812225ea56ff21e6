"""The CPU platform."""

import pytest
import torch

from engine_stub.platforms import platform_of
from engine_stub.platforms.interface import host_tensor

CPU = torch.device("cpu")


def test_values_go_to_the_device_and_come_back() -> None:
    platform = platform_of(CPU)
    ids = platform.to_device([1, 2**40, -3], CPU, torch.int64)
    figures = platform.to_device([0.5, 1.5], CPU, torch.float32)
    assert platform.to_host([ids, figures]) == [[1, 2**40, -3], [0.5, 1.5]]
    buffer = platform.host_zeros([2], torch.int64)
    platform.copy_to_device([7, 8], buffer)
    assert platform.to_host([buffer]) == [[7, 8]]


def test_what_a_cpu_does_not_have_is_an_error() -> None:
    platform = platform_of(CPU)
    assert not platform.captures_graphs
    with pytest.raises(RuntimeError, match="captures no graphs"):
        platform.capture(lambda: torch.zeros(1), CPU, None)
    with pytest.raises(RuntimeError, match="memory"):
        platform.free_bytes(CPU)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_host_tensors_hold_their_values(dtype: torch.dtype) -> None:
    tensor = host_tensor([1, 2, 3], dtype)
    assert tensor.dtype is dtype
    assert tensor.tolist() == [1, 2, 3]
