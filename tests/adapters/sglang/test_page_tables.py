"""Pages that a device copies while the scheduler goes on: nobody waits, and the order is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from seqtop.adapters.observations import AnyObservation, EngineStopping
from seqtop.adapters.sglang.page_tables import PageTables


class Publisher:
    wants_all_requests = False

    def __init__(self) -> None:
        self.sent: list[AnyObservation] = []

    def send(self, observation: AnyObservation) -> None:
        self.sent.append(observation)


class Tensor:
    """Numbers that are in the host's memory once the device's event is done."""

    def __init__(self, rows: Any, device: str = "cuda") -> None:
        self.rows = rows
        self.device = SimpleNamespace(type=device)
        self.shape: tuple[int, ...] = ()
        self.source: Tensor | None = None

    def __getitem__(self, place: tuple[int, slice]) -> Tensor:
        row, columns = place
        return Tensor(self.rows[row][columns])

    def __floordiv__(self, size: int) -> Tensor:
        assert self.source is not None
        return Tensor([slot // size for slot in self.source.rows], "cpu")

    def tolist(self) -> list[int]:
        return list(self.source.rows if self.source is not None else self.rows)

    def new_empty(self, _shape: object, *, device: str, pin_memory: bool) -> Tensor:
        assert (device, pin_memory) == ("cpu", True), "other copies wait"
        return Tensor([], "cpu")

    def copy_(self, source: Tensor, *, non_blocking: bool) -> Tensor:
        assert non_blocking
        self.source = source
        return self


class Device:
    """A module such as `torch.cuda`."""

    def __init__(self) -> None:
        self.num_done = self.num_recorded = 0
        device = self

        class Event:
            def record(self) -> None:
                self.number = device.num_recorded
                device.num_recorded += 1

            def query(self) -> bool:
                return self.number < device.num_done

        self.Event = Event


def test_observations_are_sent_in_order_when_their_pages_have_come() -> None:
    device, publisher = Device(), Publisher()
    slots = [[7, 8, 9, 0], [32, 33, 34, 35, 68]]
    scheduler = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=Tensor(slots)),
        page_size=4,
        device_module=device,
    )
    tables = PageTables(scheduler, publisher)
    first, second, third = (EngineStopping(float(number), "") for number in range(3))
    whole = tables.read(SimpleNamespace(req_pool_idx=1, kv_allocated_len=5))
    tables.send(first)
    (new,) = tables.read_slots(Tensor([3, 20]), [1])
    none = tables.read(SimpleNamespace(req_pool_idx=None, kv_allocated_len=0))
    tables.send(second)
    tables.send(third)  # it has no pages, and comes after those that have
    assert (publisher.sent, whole, new) == ([], [], [])
    device.num_done = 1
    tables.flush()
    assert (publisher.sent, whole, new) == ([first], [8, 17], [])
    device.num_done = 2
    tables.flush()
    assert (publisher.sent, whole, new, none) == ([first, second, third], [8, 17], [5], [])
    tables.send(first)
    assert publisher.sent[-1] is first, "nothing is waited for"
