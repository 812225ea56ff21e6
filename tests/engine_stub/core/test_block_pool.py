"""The states of blocks: used, cached and free."""

from collections import Counter

from engine_stub.core.block_pool import BlockPool
from engine_stub.step_record import BlockRemoved


def test_all_blocks_are_free_at_first() -> None:
    pool = BlockPool(3)
    assert (pool.num_blocks, pool.num_free, pool.num_cached, pool.num_available) == (3, 3, 0, 3)
    assert [pool.ref_count(block) for block in range(3)] == [0, 0, 0]
    pool.check(Counter())
    assert [pool.take(7) for _ in range(3)] == [0, 1, 2]
    assert pool.num_available == 0


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(3)
    first, second = pool.take(7), pool.take(7)
    assert pool.register(first, b"first")
    pool.release(first)
    pool.release(second)
    assert (pool.num_free, pool.num_cached, pool.num_available) == (2, 1, 3)
    taken = {pool.take(7), pool.take(7)}
    assert first not in taken
    assert pool.find(b"first") == first
    assert pool.take(7) == first
    assert pool.find(b"first") is None
    assert pool.take_events() == [BlockRemoved(first, b"first", 7)]
    assert pool.take_events() == []
    pool.check(Counter(range(3)))


def test_the_least_recently_used_cached_block_is_evicted_first() -> None:
    pool = BlockPool(2)
    blocks = [pool.take(7), pool.take(7)]
    for block in blocks:
        pool.register(block, bytes([block]))
        pool.release(block)
    pool.share(blocks[0])
    pool.release(blocks[0])
    assert pool.take(7) == blocks[1]


def test_equal_contents_are_registered_once() -> None:
    pool = BlockPool(2)
    first, second = pool.take(7), pool.take(7)
    assert pool.register(first, b"same")
    assert not pool.register(second, b"same")
    pool.release(second)
    assert pool.num_cached == 0
    pool.check(Counter([first]))


def test_a_block_is_released_by_its_last_table() -> None:
    pool = BlockPool(1)
    block = pool.take(7)
    assert pool.share(block) == block
    assert pool.ref_count(block) == 2
    pool.release(block)
    assert pool.num_available == 0
    pool.release(block)
    assert pool.num_available == 1
