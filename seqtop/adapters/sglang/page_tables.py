"""Reads the pages of requests, from the device if need be, and never waits for it."""

from __future__ import annotations

from collections import deque
from typing import Any

from seqtop.adapters.observations import AnyObservation, ObservationSink
from seqtop.adapters.sglang.copies import Copies, Event


class PageTables:
    """Reads the pages of requests, which arrive later, and sends observations when they have.

    SGLang stores the slot of each token in a tensor with one row for each request, which is in the
    device's memory. A page is a run of slots.

    Args:
        scheduler: SGLang's scheduler.
        publisher: Receives the observations.
    """

    def __init__(self, scheduler: Any, publisher: ObservationSink) -> None:
        self._slots = scheduler.req_to_token_pool.req_to_token
        self._page_size: int = scheduler.page_size
        self._publisher = publisher
        self._copies = Copies(getattr(scheduler, "device_module", None))
        self._reads: list[tuple[list[int], Any]] = []
        """Lists of pages to fill, and the slots of each."""
        self._shared: list[tuple[list[list[int]], list[int], Any]] = []
        """Lists of pages to fill, with the position of one slot for each."""
        self._waiting: deque[tuple[Event | None, Any, Any, AnyObservation]] = deque()

    def read(self, kv: Any, first_page: int = 0) -> list[int]:
        """Returns the list that the pages of a request will be in, from `first_page` on."""
        pages: list[int] = []
        start = first_page * self._page_size
        if kv.req_pool_idx is not None and kv.kv_allocated_len > start:
            row = self._slots[kv.req_pool_idx, start : kv.kv_allocated_len : self._page_size]
            self._reads.append((pages, self._copies.start(row)))
        return pages

    def read_slots(self, slots: Any, positions: list[int]) -> list[list[int]]:
        """Returns, for each of some slots, the list that its page will be in.

        Args:
            slots: A tensor of slots.
            positions: Positions in it.
        """
        pages: list[list[int]] = [[] for _ in positions]
        self._shared.append((pages, positions, self._copies.start(slots)))
        return pages

    def read_pages(self, slots: Any) -> list[int]:
        """Returns the list that the pages of a tensor of slots will be in.

        The slots are whole pages.
        """
        pages: list[int] = []
        self._reads.append((pages, self._copies.start(slots[:: self._page_size])))
        return pages

    def send(self, observation: AnyObservation) -> None:
        """Sends an observation after all earlier ones, when the pages that were read have come."""
        if self._reads or self._shared or self._waiting:
            self._waiting.append((self._copies.event(), self._reads, self._shared, observation))
            self._reads, self._shared = [], []
            self.flush()
        else:
            self._publisher.send(observation)

    def flush(self) -> None:
        """Sends the observations whose pages have come."""
        while self._waiting:
            event, reads, shared, observation = self._waiting[0]
            if event is not None and not event.query():
                return
            self._waiting.popleft()
            size = self._page_size
            for pages, slots in reads:
                pages += (slots // size).tolist()
            for lists, positions, slots in shared:
                numbers = slots.tolist()
                for pages, position in zip(lists, positions, strict=True):
                    pages.append(numbers[position] // size)
            self._publisher.send(observation)
