"""What the screens of KV-cache events show: the source's cache, where the cursor is, rates."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from seqtop.connection import Connection
from seqtop.kv_events.cache import CachedKvBlock, KvCache

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Token ids to text."""

RATE_SECONDS = 5.0


class KvSource(Protocol):
    """One publisher. `seqtop.kv_events.session.KvSession` is the live one."""

    has_replay: bool

    @property
    def lock(self) -> threading.RLock:
        """Hold it while reading `cache`."""

    @property
    def cache(self) -> KvCache: ...

    @property
    def connection(self) -> Connection: ...

    @property
    def version(self) -> int:
        """Grows whenever the cache or the connection has changed."""

    @property
    def now(self) -> float:
        """Epoch seconds, for ages."""


class KvRateSample(NamedTuple):
    at: float
    num_events: int


class KvUiState:
    """The app's only truth. Call everything but `poll` under `lock`.

    Args:
        clock: Seconds, for rates and to know when ages are to be drawn anew.
        decode: Makes text of tokens, if there is a tokenizer.
    """

    def __init__(
        self,
        source: KvSource,
        *,
        decode: Decode | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.medium: str | None = None
        """The tier that the cursor is in; `None` for the first there is."""
        self.cell = 0
        """Where in it the cursor is."""
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
        """Tier and cell under the cursor; `None` while there are no cells."""
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
        """Put the cursor on a block, in the tier it is in already if the block is there, too."""
        cursor = self.cursor
        medium = cursor[0] if cursor and cursor[0] in block.cells else next(iter(block.cells))
        self.medium, self.cell = medium, block.cells[medium]

    @property
    def rate(self) -> float | None:
        """Events per second over the last few; `None` until that can be told."""
        first, last = (self._samples[0], self._samples[-1]) if self._samples else (None, None)
        if first is None or last is None or last.at <= first.at:
            return None
        return (last.num_events - first.num_events) / (last.at - first.at)

    def age(self, moment: float) -> float:
        """Seconds since a moment of the engine's."""
        return max(self.source.now - moment, 0.0)

    def text(self, token_ids: Sequence[int] | None) -> str | None:
        """The text of tokens; `None` where there is no tokenizer, or none of these."""
        if self._decode is None or token_ids is None:
            return None
        try:
            return self._decode(token_ids)
        except Exception:  # noqa: BLE001 - ids are the wire's, and the library raises anything
            return None

    def poll(self) -> bool:
        """Whether anything would now look different."""
        now = self._clock()
        with self.lock:
            changed = self.source.version != self._version or int(now) != self._second
            self._version, self._second = self.source.version, int(now)
            if changed:
                self._samples.append(KvRateSample(now, self.cache.num_events))
                while now - self._samples[0].at > RATE_SECONDS:
                    self._samples.popleft()
        return changed
