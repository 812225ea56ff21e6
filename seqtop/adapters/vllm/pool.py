"""How many free blocks the prefix cache could still give out.

vLLM keeps no such count, and looking at every block takes milliseconds, so it is kept here: by
what goes in and out of the queue of free blocks with a hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from seqtop.adapters.vllm.wrapping import Wrap


class FreeBlockCounter:
    """Follows one `BlockPool`, whose methods `wrap` surrounds."""

    def __init__(self, pool: Any, wrap: Wrap) -> None:
        self._pool = pool
        self._num_cached = 0
        wrap(pool, "touch", before=self._touched)
        wrap(pool, "free_blocks", before=self._to_free, after=self._freed)
        wrap(pool, "_maybe_evict_cached_block", after=self._evicted)
        wrap(pool, "reset_prefix_cache", after=self._reset)

    @property
    def num_free(self) -> int:
        """Blocks in no table."""
        return int(self._pool.get_num_free_blocks())

    @property
    def num_cached(self) -> int:
        """Of those, blocks whose content a request could still be given."""
        return self._num_cached

    def _touched(self, blocks: Iterable[Any]) -> None:
        self._num_cached -= sum(not block.ref_cnt and not block.is_null for block in blocks)

    def _to_free(self, *args: Any, **_: Any) -> tuple[Any, ...] | None:
        # It may be an iterator, which can be used up only once.
        return (list(args[0]), *args[1:]) if args else None

    def _freed(self, _result: object, ordered_blocks: Iterable[Any]) -> None:
        for block in ordered_blocks:
            if not block.ref_cnt and block.block_hash is not None and not block.is_null:
                self._num_cached += 1

    def _evicted(self, has_been: bool, block: Any) -> None:
        if has_been and not block.ref_cnt:
            self._num_cached -= 1

    def _reset(self, done: bool) -> None:
        if done:
            self._num_cached = 0
