"""Copies of small tensors from a device, for which nobody waits."""

from __future__ import annotations

from typing import Any, Protocol


class Event(Protocol):
    """An event of a device's stream, such as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Returns whether everything before the event is done."""


class Copies:
    """Copies that the device makes while the scheduler goes on.

    A tensor that is in the host's memory already is copied at once.

    Args:
        device_module: The module of the device, such as `torch.cuda`.
    """

    def __init__(self, device_module: Any) -> None:
        self._device_module = device_module
        self._is_recorded = True

    def start(self, tensor: Any) -> Any:
        """Returns a tensor in the host's memory, which has the content once `event` is done."""
        if tensor.device.type == "cpu":
            return tensor.clone()
        self._is_recorded = False
        # Only copies to pinned memory do not wait for the device.
        host = tensor.new_empty(tensor.shape, device="cpu", pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def event(self) -> Event | None:
        """Returns the event after the copies since the last call; `None` if they are done."""
        if self._is_recorded:
            return None
        self._is_recorded = True
        event = self._device_module.Event()
        event.record()
        return event  # type: ignore[no-any-return]
