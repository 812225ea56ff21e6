"""The count of free blocks that are cached, against a look at every block."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from seqtop.adapters.vllm.free_block_counter import FreeBlockCounter
from seqtop.adapters.wrapping import Wrapping
from tests.support.fake_vllm import BlockPool


class GroupedBlockPool(BlockPool):
    """As of vLLM 0.11 to 0.13: `touch` takes the blocks of each KV-cache group."""

    def touch(self, blocks: Sequence[Any]) -> None:
        for of_group in blocks:
            super().touch(of_group)


@pytest.mark.parametrize("kind", [BlockPool, GroupedBlockPool])
def test_the_count_is_that_of_the_free_blocks_with_a_hash(kind: type[BlockPool]) -> None:
    chance = random.Random(3)
    pool = kind(16)
    errors = list[Exception]()
    counter = FreeBlockCounter(pool, Wrapping(errors.append).wrap)
    held: list[list[object]] = []
    counts = set()
    for number in range(400):
        choice = chance.randrange(10)
        if choice < 5 and pool.get_num_free_blocks() >= 3:
            blocks = pool.get_new_blocks(chance.randrange(1, 4))
            for block in blocks:
                if chance.random() < 0.7:
                    block.block_hash = (number, block.block_id)
                    pool.by_hash[block.block_hash] = block
            held.append(blocks)
        elif choice < 9 and held:
            pool.free_blocks(iter(held.pop(chance.randrange(len(held)))))
        elif cached := [block for block in pool.by_hash.values() if not block.ref_cnt]:
            pool.touch((cached[:1],) if kind is GroupedBlockPool else cached[:1])
            held.append(cached[:1])
        if number == 300:
            pool.reset_prefix_cache()
        free = [block for block in pool.free_queue if block.block_hash is not None]
        assert counter.num_cached == len(free)
        assert counter.num_free == pool.get_num_free_blocks()
        counts.add(counter.num_cached)
    assert not errors
    assert len(counts) > 3
