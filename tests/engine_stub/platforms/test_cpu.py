"""The CPU platform."""

import pytest
import torch

from engine_stub.platforms import copy_to_device, host_zeros, platform_of, to_device, to_host

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_values_go_to_the_device_and_come_back(dtype: torch.dtype) -> None:
    tensor = to_device([1, 2, -3], CPU, dtype)
    assert tensor.dtype is to_device([], CPU, dtype).dtype is dtype
    large = to_device([2**40], CPU)
    assert to_host(tensor, large) == [[1, 2, -3], [2**40]]
    buffer = host_zeros([2], torch.int64, CPU)
    copy_to_device([7, 8], buffer)
    assert to_host(buffer) == [[7, 8]]


def test_nothing_is_captured_and_all_memory_is_shared() -> None:
    platform = platform_of(CPU)
    assert not platform.has_own_memory
    numbers = torch.ones(2)
    again = platform.graph_capture(CPU)(lambda: numbers * 2)
    numbers.fill_(3)
    assert again().tolist() == [6, 6]
