"""vLLM's own KV-cache events, read by a viewer: its map has to be what the block pool holds.

Run by `make test-vllm`, as `against_vllm.py`. Nothing of seqtop's is in the engine here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from against_vllm import serve, vllm
from kv_spy import name
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)

from seqtop.kv.messages import EventBatch
from seqtop.kv.session import KvSession
from seqtop.transport.connection import ConnectionState

SECONDS = 60


class Recorded(KvSession):
    """A session that writes down what is cached, copies and all, after each message."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[dict[str, int]] = []

    def apply(self, batch: EventBatch) -> None:
        super().apply(batch)
        self.seen.append(copies(self))
        self.changed()

    def wait_for_batches(self, count: int) -> bool:
        return self.wait_until(lambda: len(self.seen) >= count, SECONDS)


def copies(session: KvSession) -> dict[str, int]:
    return {
        name(block_hash): block.copies["GPU"]
        for (_, block_hash), block in session.cache.blocks.items()
    }


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="sq") as name:
        yield Path(name)


@pytest.mark.parametrize("hashes", ["numbers", "bytes"])
def test_map_is_what_the_block_pool_holds_after_every_message(hashes: str, directory: Path) -> None:
    endpoint, replay = f"ipc://{directory}/k", f"ipc://{directory}/r"
    places = {"KV_EVENTS": endpoint, "KV_REPLAY": replay, "KV_SPY_FILE": str(directory / "kv")}
    places["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "1" if hashes == "numbers" else "0"
    with vllm(directory, **places) as process, Recorded(endpoint, topic="kv") as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        serve(process, directory)
        lines = [json.loads(line) for line in (directory / "kv").read_text().splitlines()]
        truth = {line["num_batches"]: line["cached"] for line in lines}
        assert session.wait_for_batches(max(truth))
    assert (session.cache.gap, session.connection.num_missed, session.connection.num_errors) == (
        "",
        0,
        0,
    )
    assert len(session.seen) == max(truth)
    for number, is_shown in enumerate(session.seen, start=1):
        assert is_shown == truth[number], f"after message {number} of {len(session.seen)}"
    cache = session.cache
    assert cache.num_removed, "the pool was meant to be too small"
    assert cache.num_branching, "prompts were meant to share prefixes"
    assert cache.num_removed_unknown == 0
    print(  # the figures that docs/vllm.md quotes
        f"\nvLLM's KV-cache events, hashes as {hashes}: {len(session.seen)} messages,"
        f" {cache.num_stored} blocks stored ({cache.num_stored_again} again),"
        f" {cache.num_removed} removed, {cache.num_branching} branched:"
        " the viewer's map was the block pool's after every message"
    )


def stored(number: int, parent: int | None) -> BlockStored:
    return BlockStored(
        block_hashes=[number],
        parent_block_hash=parent,
        token_ids=[1, 2],
        block_size=2,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


def test_vllms_publisher_replays_and_restarts(directory: Path) -> None:
    endpoint, replay = f"ipc://{directory}/k", f"ipc://{directory}/r"

    def publisher() -> ZmqEventPublisher:
        return ZmqEventPublisher(0, endpoint, replay, buffer_steps=3, topic="kv")

    first = publisher()
    for number in range(5):
        first.publish(KVEventBatch(ts=1.0, events=[stored(number, number - 1 if number else None)]))
    first._event_queue.join()  # its thread has sent them all, and keeps the last three
    with Recorded(endpoint, replay=replay) as session:
        assert session.wait_for_batches(3)
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert copies(session) == {"2": 1, "3": 1, "4": 1}
        assert "before number 2 have been discarded" in session.cache.gap
        first.publish(KVEventBatch(ts=2.0, events=[AllBlocksCleared(), stored(9, None)]))
        first.publish(
            KVEventBatch(
                ts=3.0, events=[BlockRemoved(block_hashes=[9], medium="GPU"), stored(8, 9)]
            )
        )
        assert session.wait_for_batches(5)
        assert (copies(session), session.cache.gap) == ({"8": 1}, "")
        first.shutdown()
        assert session.wait_for(ConnectionState.LOST, timeout=SECONDS)
        second = publisher()
        second.publish(KVEventBatch(ts=4.0, events=[stored(7, None)]))
        assert session.wait_for_batches(6)
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert (copies(session), session.cache.gap, session.connection.num_missed) == (
            {"7": 1},
            "",
            0,
        )
        second.shutdown()
