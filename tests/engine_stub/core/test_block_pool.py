"""The states of blocks: used, cached and free."""

from collections import Counter

from engine_stub.core.block_pool import BlockPool
from engine_stub.step_record import BlockRemoved, BlockStored


def test_all_blocks_are_free_at_first() -> None:
    pool = BlockPool(3)
    assert (pool.num_blocks, pool.num_free, pool.num_cached, pool.num_available) == (3, 3, 0, 3)
    assert [pool.ref_count(block) for block in range(3)] == [0, 0, 0]
    pool.check(Counter())
    assert pool.get_new_blocks(3, 7) == [0, 1, 2]
    assert pool.num_available == 0


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(3)
    first, second = pool.get_new_blocks(2, 7)
    pool.cache_full_blocks(7, [first], [b"first"], 0, 1)
    pool.free_blocks([first, second])
    assert (pool.num_free, pool.num_cached, pool.num_available) == (2, 1, 3)
    assert first not in pool.get_new_blocks(2, 8)
    assert pool.get_cached_block(b"first") == first
    assert pool.get_new_blocks(1, 9) == [first]
    assert pool.get_cached_block(b"first") is None
    assert pool.take_events() == [
        BlockStored(first, b"first", 7, 0),
        BlockRemoved(first, b"first", 9),
    ]
    assert pool.take_events() == []
    pool.check(Counter(range(3)))


def test_the_least_recently_used_cached_block_is_evicted_first() -> None:
    pool = BlockPool(2)
    blocks = pool.get_new_blocks(2, 7)
    pool.cache_full_blocks(7, blocks, [b"a", b"b"], 0, 2)
    pool.free_blocks(blocks)
    pool.touch(blocks[:1])
    pool.free_blocks(blocks[:1])
    assert pool.get_new_blocks(2, 7) == [blocks[1], blocks[0]]


def test_only_blocks_that_are_full_and_were_not_cached_before_are_cached() -> None:
    pool = BlockPool(4)
    blocks, hashes = pool.get_new_blocks(4, 7), [b"a", b"b", b"c"]
    pool.cache_full_blocks(7, blocks, hashes, 1, 3)
    assert pool.take_events() == [
        BlockStored(blocks[1], b"b", 7, 1),
        BlockStored(blocks[2], b"c", 7, 2),
    ]
    assert [pool.get_cached_block(block_hash) for block_hash in hashes] == [None, *blocks[1:3]]


def test_equal_contents_are_cached_once() -> None:
    pool = BlockPool(2)
    first, second = pool.get_new_blocks(2, 7)
    pool.cache_full_blocks(7, [first], [b"same"], 0, 1)
    pool.cache_full_blocks(8, [second], [b"same"], 0, 1)
    assert pool.take_events() == [BlockStored(first, b"same", 7, 0)]
    pool.free_blocks([second])
    assert pool.num_cached == 0
    pool.check(Counter([first]))


def test_a_block_is_freed_by_its_last_table() -> None:
    pool = BlockPool(1)
    blocks = pool.get_new_blocks(1, 7)
    pool.touch(blocks)
    assert pool.ref_count(blocks[0]) == 2
    pool.free_blocks(blocks)
    assert pool.num_available == 0
    pool.free_blocks(blocks)
    assert pool.num_available == 1
