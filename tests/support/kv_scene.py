"""A cache to look at, made of events: a source without sockets, with a clock that stands still."""

import hashlib
import threading
from typing import Any

from seqtop.kv.app import KvApp
from seqtop.kv.cache import KvCache
from seqtop.kv.messages import BlockRemoved, BlockStored, EventBatch, KvEvent
from seqtop.transport.connection import Connection, ConnectionState

HOSTILE = "\x1b]52;c;YQ==\x07[red]\u202e"


class ScriptedKvSource:
    """Whatever a test puts into it."""

    def __init__(self, *, has_replay: bool = False) -> None:
        self.lock = threading.RLock()
        self.cache = KvCache()
        self.connection = Connection("tcp://127.0.0.1:5557", ConnectionState.LIVE)
        self.version = 0
        self.now = 0.0
        self.has_replay = has_replay

    def send(self, *events: KvEvent, time: float | None = None) -> None:
        with self.lock:
            self.now = self.now + 1 if time is None else time
            self.cache.apply(EventBatch(self.now, list(events), 0))
            self.version += 1


def digest(*parts: int) -> bytes:
    """A hash, the same each time."""
    return hashlib.sha256(repr(parts).encode()).digest()


def run(
    prefix: int, start: int, count: int, parent: bytes | None = None, **more: Any
) -> BlockStored:
    hashes: list[int | bytes] = [digest(prefix, start + index) for index in range(count)]
    tokens = [1_000 * prefix + 16 * start + index for index in range(16 * count)]
    return BlockStored(hashes, parent, tokens, 16, **{"medium": "GPU", "group_idx": 0, **more})


def scene(source: ScriptedKvSource) -> None:
    """Three prefix trees, one of which forks; some blocks in CPU memory, too; some removed."""
    source.send(run(1, 0, 60, kv_cache_spec_kind="full_attention"))
    source.send(run(2, 0, 25), run(3, 0, 12, lora_name="poems"))
    source.send(run(4, 0, 20, digest(1, 9)), run(5, 0, 9, digest(1, 9)))
    source.send(run(1, 0, 30, medium="CPU"), run(2, 0, 25, medium="CPU"))
    source.send(BlockRemoved([digest(2, index) for index in range(18, 25)], "GPU", 0))
    source.send(BlockRemoved([digest(1, index) for index in range(50, 60)], "GPU", 0))
    source.send(run(1, 5, 1, digest(1, 4)))
    source.now += 42


def app_of(source: ScriptedKvSource, **options: Any) -> KvApp:
    return KvApp(source, clock=lambda: 0.0, **options)
