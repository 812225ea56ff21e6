"""The queue between the engine's and the publisher's thread."""

import select
from collections.abc import Iterator

import pytest

from seqtop.transport.outbound_queue import EndOfStream, OutboundQueue, QueuedEvent, QueueFullError


@pytest.fixture
def queue() -> Iterator[OutboundQueue]:
    queue = OutboundQueue(2)
    yield queue
    queue.close()


def is_readable(queue: OutboundQueue) -> bool:
    return bool(select.select([queue], [], [], 0)[0])


def test_each_item_wakes_the_reader_once(queue: OutboundQueue) -> None:
    assert not is_readable(queue)
    queue.put(QueuedEvent(b"a"))
    queue.put(QueuedEvent(b"b"))
    assert is_readable(queue)
    assert queue.take(10) == [QueuedEvent(b"a"), QueuedEvent(b"b")]
    assert not is_readable(queue)
    assert queue.take(10) == []


def test_items_over_the_limit_of_one_call_remain(queue: OutboundQueue) -> None:
    queue.put(QueuedEvent(b"a"))
    queue.put(QueuedEvent(b"b"))
    assert queue.take(1) == [QueuedEvent(b"a")]
    assert len(queue) == 1
    assert queue.take(1) == [QueuedEvent(b"b")]


def test_full_queue_refuses_items_but_can_be_ended(queue: OutboundQueue) -> None:
    queue.put(QueuedEvent(b"a"))
    queue.put(QueuedEvent(b"b"))
    with pytest.raises(QueueFullError, match="wait to be sent already"):
        queue.put(QueuedEvent(b"c"))
    queue.end()
    with pytest.raises(QueueFullError, match="has been closed"):
        queue.put(QueuedEvent(b"d"))
    assert queue.take(10) == [QueuedEvent(b"a"), QueuedEvent(b"b"), EndOfStream()]


def test_many_wake_ups_do_not_block_the_writer() -> None:
    queue = OutboundQueue(10**6)
    for _ in range(100_000):
        queue.put(QueuedEvent(b""))
    assert is_readable(queue)
    assert len(queue.take(10**6)) == 100_000
    queue.close()
