"""The state of the display of KV-cache events: the source's cache, the cursor and the rate."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from seqtop.kv.cache import CachedKvBlock, KvCache
from seqtop.transport.connection import Connection
from seqtop.tui.rendering.owner_marks import OwnerMarks

TokenDecoder: TypeAlias = Callable[[Sequence[int]], str]
"""Decodes token ids to text."""

RATE_SECONDS = 5.0


class KvSource(Protocol):
    """One publisher; `seqtop.kv.session.KvSession` is one."""

    has_replay: bool

    @property
    def lock(self) -> threading.RLock:
        """Held while `cache` is written; hold it while you read it."""

    @property
    def cache(self) -> KvCache: ...

    @property
    def connection(self) -> Connection: ...

    @property
    def version(self) -> int:
        """Grows whenever the cache or the connection has changed."""

    @property
    def now(self) -> float:
        """The current time in epoch seconds, from which ages are computed."""


class KvRateSample(NamedTuple):
    """The number of events so far at a time in seconds."""

    at: float
    num_events: int


class KvUiState:
    """The display of one publisher. All of it but `poll` is used under `lock`.

    Args:
        source: The publisher.
        decode: Decodes token ids, if there is a tokenizer.
        clock: Returns seconds, for the rate and for ages, which are drawn again each second.
    """

    def __init__(
        self,
        source: KvSource,
        *,
        decode: TokenDecoder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.medium: str | None = None
        """The tier of the cursor; `None` for the first tier."""
        self.cell = 0
        """The cell of the cursor in its tier."""
        self.marks = OwnerMarks()
        """The letters and the styles of the trees on the map, by their serial numbers."""
        self._decode = decode
        self._clock = clock
        self._version = -1
        self._second = -1
        self._samples: deque[KvRateSample] = deque()

    @property
    def lock(self) -> threading.RLock:
        return self.source.lock

    @property
    def cache(self) -> KvCache:
        return self.source.cache

    @property
    def cursor(self) -> tuple[str, int] | None:
        """The tier and the cell under the cursor; `None` while there are no cells."""
        tiers = self.cache.tiers
        if not tiers:
            return None
        medium = self.medium if self.medium in tiers else next(iter(tiers))
        assert medium is not None
        return medium, max(0, min(self.cell, len(tiers[medium].cells) - 1))

    @property
    def block(self) -> CachedKvBlock | None:
        """The block under the cursor, if the cell is not empty."""
        if (cursor := self.cursor) is None:
            return None
        medium, cell = cursor
        return self.cache.tiers[medium].cells[cell]

    def select(self, block: CachedKvBlock) -> None:
        """Puts the cursor on a block, in its current tier if the block is in that tier."""
        cursor = self.cursor
        medium = cursor[0] if cursor and cursor[0] in block.cells else next(iter(block.cells))
        self.medium, self.cell = medium, block.cells[medium]

    @property
    def rate(self) -> float | None:
        """Events per second over the last `RATE_SECONDS`; `None` before two samples."""
        first, last = (self._samples[0], self._samples[-1]) if self._samples else (None, None)
        if first is None or last is None or last.at <= first.at:
            return None
        return (last.num_events - first.num_events) / (last.at - first.at)

    def age(self, moment: float) -> float:
        """Returns the seconds since a time of the engine, in epoch seconds."""
        return max(self.source.now - moment, 0.0)

    def text(self, token_ids: Sequence[int] | None) -> str | None:
        """Returns the text of tokens; `None` if they or the tokenizer are missing."""
        if self._decode is None or token_ids is None:
            return None
        try:
            return self._decode(token_ids)
        except Exception:  # noqa: BLE001 - ids are the wire's, and the library raises anything
            return None

    def poll(self) -> bool:
        """Returns whether the display has changed since the last call; samples the rate."""
        now = self._clock()
        with self.lock:
            changed = self.source.version != self._version or int(now) != self._second
            self._version, self._second = self.source.version, int(now)
            if changed:
                self._samples.append(KvRateSample(now, self.cache.num_events))
                while now - self._samples[0].at > RATE_SECONDS:
                    self._samples.popleft()
        return changed
