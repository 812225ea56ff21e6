"""Mutated batches of KV-cache events, given to a cache and to what shows it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from seqtop.kv import json_document, messages
from seqtop.kv.cache import KvCache
from seqtop.transport.connection import Connection, ConnectionState
from seqtop.wire import WireError
from tests.support.fuzz import Feed, require_reason
from tests.support.kv_publisher import batch, cleared, removed, stored
from tests.support.mutation import Pool, by_meaning, bytewise, plausible

LINK = Connection("tcp://127.0.0.1:1", ConnectionState.LIVE)
_LOOK_EVERY = 50
_NUM_HASHES = 60


class _Stream:
    """A cache of up to 40 cells and the stream that describes it."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self._pool = Pool([list(range(_NUM_HASHES)), "GPU", "CPU", "poems"])
        self._cache = KvCache(max_blocks=40)
        self._number = 0

    def feed(self) -> bool:
        self._number += 1
        choose = self._choose
        payload = batch(
            *(self._event() for _ in range(choose.randint(1, 4))), as_map=choose.random() < 0.5
        )
        match choose.randrange(10):
            case 0:
                payload = bytewise(choose, payload)
            case 1 | 2:
                payload = by_meaning(choose, payload)
            case _:
                tree = plausible(choose, msgspec.msgpack.decode(payload), self._pool)
                payload = msgspec.msgpack.encode(tree)
        number = choose.choice((self._number, 0, 2**63 - 1, choose.randrange(2**63)))
        frames = [b"", number.to_bytes(8, "big"), payload]
        if choose.random() < 0.02:
            frames = frames[: choose.randrange(4)] * choose.randint(1, 2)
        try:
            decoded = messages.decode(messages.unpack(frames).payload)
        except WireError as error:
            require_reason(error)
            return False
        except Exception as error:
            raise AssertionError(f"{error!r} from {frames!r}") from error
        try:
            self._cache.apply(decoded)
            if self._number % _LOOK_EVERY == 0:
                self._look()
        except Exception as error:
            raise AssertionError(f"{error!r} from {payload!r}") from error
        return True

    def _event(self) -> Any:
        choose = self._choose
        hashes = [choose.randrange(_NUM_HASHES) for _ in range(choose.randint(1, 5))]
        as_map = choose.random() < 0.5
        match choose.randrange(12):
            case 0:
                return cleared(as_map=as_map)
            case 1 | 2 | 3 | 4:
                return removed(hashes, as_map=as_map, medium=choose.choice(("GPU", "CPU", None)))
        parent = choose.choice((None, choose.randrange(_NUM_HASHES)))
        more: dict[str, Any] = {"medium": choose.choice(("GPU", "CPU", None)), "lora_name": "poems"}
        return stored(hashes, parent, as_map=as_map, **more)

    def _look(self) -> None:
        cache = self._cache
        json_document.encode(cache, LINK)
        assert cache.num_cells == sum(tier.num_blocks for tier in cache.tiers.values()) <= 40
        for tree in cache.trees(0, 99):
            assert cache.rank(tree) is not None
            assert cache.tree(tree.root) is tree
            cache.member(tree)
        for block in cache.blocks.values():
            assert cache.path(block)[-1] is block
            cache.children(block.key)


@contextlib.contextmanager
def start(choose: random.Random) -> Iterator[Feed]:
    """A small cache."""
    yield _Stream(choose).feed
