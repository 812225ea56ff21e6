"""Counts the free blocks that the prefix cache could still reuse.

vLLM has no such count, and iterating over all blocks takes milliseconds. So this counts the blocks
with a hash that enter and leave the queue of free blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from seqtop.adapters.wrapping import Wrap


class FreeBlockCounter:
    """Counts the free blocks of one `BlockPool`, whose methods it wraps.

    Args:
        pool: The pool.
        wrap: Wraps a method.
        freed: Called with the stack frame of each caller that is about to free blocks.
        evicted: Called with the hash of each block that has left the prefix cache.
        counts_cached: False if the pool lacks something that `num_cached` needs.
    """

    def __init__(
        self,
        pool: Any,
        wrap: Wrap,
        freed: Callable[[FrameType], None] | None = None,
        evicted: Callable[[Any], None] | None = None,
        *,
        counts_cached: bool = True,
    ) -> None:
        self._pool = pool
        self._freed = freed
        self._evicted = evicted
        self._block_hash: Any = None
        """The hash of the block that is about to be evicted."""
        self._counts_cached = counts_cached
        self._num_free_before = 0
        if not counts_cached:
            self._num_cached = 0
            if freed is not None:
                wrap(pool, "free_blocks", before=self._before_free)
            return
        # Once, as the engine may have run before.
        self._num_cached = sum(
            not block.ref_cnt and block.block_hash is not None and not block.is_null
            for block in pool.blocks
        )
        wrap(pool, "touch", before=self._before_touch, after=self._after_touch)
        wrap(pool, "free_blocks", before=self._before_free, after=self._after_free)
        wrap(
            pool,
            "_maybe_evict_cached_block",
            before=self._before_evict if evicted is not None else None,
            after=self._after_evict,
        )
        wrap(pool, "reset_prefix_cache", after=self._after_reset)

    @property
    def num_free(self) -> int:
        """Blocks in no table."""
        return int(self._pool.get_num_free_blocks())

    @property
    def num_cached(self) -> int | None:
        """The part of `num_free` whose content a request could still reuse; `None` if unknown."""
        return self._num_cached if self._counts_cached else None

    def _before_touch(self, *_: Any, **__: Any) -> None:
        self._num_free_before = self.num_free

    def _after_touch(self, *_: Any, **__: Any) -> None:
        # Only hits are touched. Versions differ in how they are passed: by group, or all together.
        self._num_cached -= self._num_free_before - self.num_free

    def _before_free(self, *args: Any, **_: Any) -> tuple[Any, ...] | None:
        if not args:
            return None
        blocks = list(args[0])  # it may be an iterator, which can be consumed only once
        if blocks and self._freed is not None:
            self._freed(sys._getframe(2))
        return (blocks, *args[1:])

    def _after_free(self, _result: object, ordered_blocks: Iterable[Any]) -> None:
        for block in ordered_blocks:
            if not block.ref_cnt and block.block_hash is not None and not block.is_null:
                self._num_cached += 1

    def _before_evict(self, block: Any) -> None:
        self._block_hash = block.block_hash

    def _after_evict(self, evicted: bool, block: Any) -> None:
        if not evicted:
            return
        if not block.ref_cnt:
            self._num_cached -= 1
        if self._evicted is not None:
            self._evicted(self._block_hash)

    def _after_reset(self, done: bool) -> None:
        if done:
            self._num_cached = 0
