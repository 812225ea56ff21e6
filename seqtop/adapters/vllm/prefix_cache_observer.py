"""Observes what vLLM's prefix cache stores, evicts and does not find.

Only the models whose hits are decided block by block are observed: those with one KV-cache group of
full attention. Nothing is known about others.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Final, TypeAlias

from seqtop.adapters.observations import (
    AnyCacheEvent,
    BlocksEvicted,
    BlocksStored,
    CacheReset,
    LookedUp,
)
from seqtop.adapters.vllm.engine_description import Layout
from seqtop.adapters.wrapping import Wrap

MAX_HASHES: Final = 8192
"""The largest number of hashes sent for one admission."""

_OfRequest: TypeAlias = BlocksStored | BlocksEvicted | LookedUp

_HASH_LENGTH: Final = 8
"""The bytes of a hash that are sent."""

_ARGUMENTS: Final = {"request", "num_cached_blocks", "num_full_blocks"}
"""Arguments of `BlockPool.cache_full_blocks` that are read."""


class PrefixCacheObserver:
    """Records the events of one scheduler's prefix cache, in order.

    Args:
        scheduler: vLLM's V1 scheduler.
        wrap: Wraps a method.
    """

    def __init__(self, scheduler: Any, wrap: Wrap) -> None:
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        self._block_size: int = self._pool.hash_block_size
        self._events: list[AnyCacheEvent] = []
        self._evicted: list[bytes] = []
        """Evicted blocks that are not in `_events` yet."""
        self._lookups: dict[str, tuple[int, int]] = {}
        """The number of events before, and the tokens found, by request that the current call of
        `schedule` looked up."""
        wrap(self._pool, "cache_full_blocks", after=self._after_store)
        wrap(self._pool, "get_new_blocks", after=self._after_take)
        wrap(self._pool, "reset_prefix_cache", after=self._after_reset)
        wrap(manager, "get_computed_blocks", after=self._after_lookup)

    @property
    def has_content(self) -> bool:
        """True if the cache has blocks, which it may have stored unobserved."""
        return any(block.block_hash is not None for block in self._pool.blocks)

    def evicted(self, block_hash: Any) -> None:
        """Records that a block lost its content. vLLM may have the same in another block."""
        if self._pool.cached_block_hash_to_block.get_one_block(block_hash) is None:
            self._evicted.append(block_hash[:_HASH_LENGTH])

    def admitted(self, requests: list[Any]) -> None:
        """Records the lookups of the requests that a call of `schedule` has admitted.

        Each is inserted before the events that followed it.
        """
        self._flush(None)
        looked_up = [
            (*lookup, request)
            for request in requests
            if (lookup := self._lookups.get(request.request_id)) is not None
        ]
        for position, num_hit_tokens, request in reversed(looked_up):
            first = num_hit_tokens // self._block_size
            end = min((request.num_tokens - 1) // self._block_size, first + MAX_HASHES)
            event = LookedUp(
                request_id=request.request_id,
                num_tokens=request.num_tokens,
                num_hit_tokens=num_hit_tokens,
                hashes=[
                    block_hash[:_HASH_LENGTH] for block_hash in request.block_hashes[first:end]
                ],
                is_cacheable=not getattr(request, "skip_reading_prefix_cache", False),
            )
            self._events.insert(position, event)
        self._lookups.clear()

    def disown(self, request_id: str) -> None:
        """Takes an id, which is now that of another request, from the events of the one before."""
        for event in self._events:
            if isinstance(event, _OfRequest) and event.request_id == request_id:
                event.request_id = None

    def take(self) -> list[AnyCacheEvent]:
        """Returns the events since the last call."""
        self._flush(None)
        events, self._events = self._events, []
        return events

    def _after_lookup(self, result: tuple[Any, ...], request: Any, *_: Any, **__: Any) -> None:
        self._flush(None)
        self._lookups.pop(request.request_id, None)  # so that they are in order
        self._lookups[request.request_id] = len(self._events), result[1]

    def _after_store(
        self,
        _result: object,
        request: Any,
        blocks: object,
        num_cached_blocks: int,
        num_full_blocks: int,
        *_: object,
        **__: object,
    ) -> None:
        self._flush(None)
        new = request.block_hashes[num_cached_blocks:num_full_blocks]
        hashes = [block_hash[:_HASH_LENGTH] for block_hash in new]
        self._events.append(BlocksStored(request.request_id, num_cached_blocks, hashes))

    def _after_take(self, *_: Any, **__: Any) -> None:
        if self._evicted:
            # The caller's caller has the id of the request in a variable.
            request_id = sys._getframe(2).f_locals.get("request_id")
            self._flush(request_id if isinstance(request_id, str) else None)

    def _after_reset(self, done: bool) -> None:
        if done:
            self._events.append(CacheReset())

    def _flush(self, request_id: str | None) -> None:
        if self._evicted:
            self._events.append(BlocksEvicted(request_id, self._evicted))
            self._evicted = []


def why_not_observable(scheduler: Any, layout: Layout) -> str | None:
    """Returns why the hits of a scheduler's prefix cache are not decided as this class expects.

    `None` if they are, or if there is no prefix cache.
    """
    pool = scheduler.kv_cache_manager.block_pool
    groups = scheduler.kv_cache_config.kv_cache_groups
    store = getattr(pool, "cache_full_blocks", None)
    if not scheduler.vllm_config.cache_config.enable_prefix_caching:
        return None
    if len(groups) != 1 or layout.whole_tables:
        return "the model has layers other than full attention"
    if getattr(pool, "hash_block_size", None) != groups[0].kv_cache_spec.block_size:
        return "blocks are hashed in another size"
    if store is None or not inspect.signature(store).parameters.keys() >= _ARGUMENTS:
        return "BlockPool.cache_full_blocks has other arguments"
    return None
