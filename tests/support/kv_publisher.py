"""A publisher of KV-cache events, driven by hand: real sockets, but the test decides each frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from seqtop.kv.session import KvSession
from tests.support.waiting import MILLISECONDS

END = (-1).to_bytes(8, "big", signed=True)


def stored(
    hashes: Sequence[Any],
    parent: Any = None,
    *,
    as_map: bool = False,
    size: int = 4,
    first_token: int = 100,
    **more: Any,
) -> Any:
    """A `BlockStored`, in the fields of SGLang's first version and `more`."""
    fields = {
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(range(first_token, first_token + size * len(hashes))),
        "block_size": size,
        "lora_id": None,
        **more,
    }
    return {"type": "BlockStored", **fields} if as_map else ["BlockStored", *fields.values()]


def removed(hashes: Sequence[int | bytes], *, as_map: bool = False, **more: Any) -> Any:
    fields = {"block_hashes": list(hashes), **more}
    return {"type": "BlockRemoved", **fields} if as_map else ["BlockRemoved", *fields.values()]


def cleared(*, as_map: bool = False) -> Any:
    return {"type": "AllBlocksCleared"} if as_map else ["AllBlocksCleared"]


def batch(*events: Any, time: float = 1_000.0, as_map: bool = False, rank: Any = 0) -> bytes:
    if as_map:
        return msgspec.msgpack.encode({"ts": time, "events": events, "data_parallel_rank": rank})
    return msgspec.msgpack.encode([time, events, rank])


class KvPublisher:
    """Publishes batches, and answers for those that it keeps if the test allows it.

    Args:
        replays_topic: Whether replayed messages have the topic before the number, as vLLM's have
            since 0.3x.
    """

    def __init__(
        self,
        endpoint: str,
        replay: str | None = None,
        *,
        topic: bytes = b"",
        replays_topic: bool = True,
    ) -> None:
        self.next_number = 0
        self.kept: list[tuple[int, bytes]] = []
        self._topic = topic
        self._replays_topic = replays_topic
        self._context = zmq.Context()
        self.live = self._context.socket(zmq.XPUB)
        self.live.bind(endpoint)
        self.router = None
        if replay is not None:
            self.router = self._context.socket(zmq.ROUTER)
            self.router.bind(replay)

    def await_viewer(self) -> None:
        """Wait until a viewer's subscription has arrived: from then on it misses nothing."""
        assert self.live.poll(MILLISECONDS), "no viewer subscribed"
        assert self.live.recv().startswith(b"\x01")

    def send(self, *events: Any, lose: bool = False, as_map: bool = False, **more: Any) -> None:
        self.send_payload(batch(*events, as_map=as_map, **more), lose=lose)

    def send_payload(self, payload: bytes, *, lose: bool = False) -> None:
        self.kept.append((self.next_number, payload))
        if not lose:
            number = self.next_number.to_bytes(8, "big")
            self.live.send_multipart([self._topic, number, payload])
        self.next_number += 1

    def answer(self) -> int:
        """Wait for one question and answer it; returns the number that was asked for."""
        assert self.router is not None
        assert self.router.poll(MILLISECONDS), "no viewer asked"
        identity, empty, start = self.router.recv_multipart()
        assert empty == b""
        first = int.from_bytes(start, "big")
        topic = [self._topic] if self._replays_topic else []
        for number, payload in self.kept:
            if number >= first:
                frames = [identity, b"", *topic, number.to_bytes(8, "big"), payload]
                self.router.send_multipart(frames)
        self.router.send_multipart([identity, b"", *([b""] if topic else []), END, b""])
        return first

    def close(self) -> None:
        self._context.destroy(linger=200)

    def __enter__(self) -> KvPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hashes(session: KvSession) -> set[object]:
    with session.lock:
        return {block_hash for _, block_hash in session.cache.blocks}
