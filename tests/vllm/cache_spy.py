"""Records why vLLM's prefix cache did not have a request's blocks, from inside the cache.

It knows the contents by their tokens and extra keys instead of hashes, has no limits, and looks
into the pool at each lookup.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

Content = tuple[tuple[str, str], tuple[int, ...]]
"""The LoRA adapter and the salt, and all tokens up to the end of a block."""


class Cause(NamedTuple):
    cause: str
    step: int | None = None
    request_id: str | None = None


class CacheSpy:
    """Wraps the classes of one scheduler, before the adapter wraps its objects."""

    def __init__(self, scheduler: Any, block_size: int) -> None:
        self.admissions: list[tuple[str, list[Cause]]] = []
        """Each admission, with the cause of each missed block."""
        self._block_size = block_size
        self._step = 0
        self._allocates_for: str | None = None
        self._pool = scheduler.kv_cache_manager.block_pool
        self._content: dict[int, Content] = {}
        self._evicted: dict[Content, Cause] = {}
        self._requested: dict[Content, Cause] = {}
        self._looked_up: dict[str, tuple[list[Cause], list[Content]]] = {}
        self._allocated: dict[str, list[Cause]] = {}
        manager = type(scheduler.kv_cache_manager)
        self._originals: list[tuple[Any, str, Any]] = []
        self._wrap(type(scheduler), "schedule", self._schedule)
        self._wrap(type(scheduler), "update_from_output", self._update)
        self._wrap(manager, "get_computed_blocks", self._look_up)
        self._wrap(manager, "allocate_slots", self._allocate)
        self._wrap(type(self._pool), "cache_full_blocks", self._store)
        self._wrap(type(self._pool), "_maybe_evict_cached_block", self._evict)
        self._wrap(type(self._pool), "reset_prefix_cache", self._reset)

    def close(self) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)

    def _wrap(self, owner: Any, name: str, spying: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        self._originals.append((owner, name, original))

        @functools.wraps(original)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            return spying(functools.partial(original, this), *args, **kwargs)

        setattr(owner, name, wrapper)

    def _schedule(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._looked_up, self._allocated = {}, {}
        output = call(*args, **kwargs)
        new = {scheduled_new_req.req_id for scheduled_new_req in output.scheduled_new_reqs}
        admitted = new | set(output.scheduled_cached_reqs.resumed_req_ids)
        self.admissions += [item for item in self._allocated.items() if item[0] in admitted]
        return output

    def _update(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        self._step += 1
        return result

    def _look_up(self, call: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(request, *args, **kwargs)
        num_hits = result[1] // self._block_size
        num_blocks = -(-request.num_tokens // self._block_size)
        contents = [self._content_of(request, position) for position in range(num_hits, num_blocks)]
        end = (request.num_tokens - 1) // self._block_size - num_hits
        if request.skip_reading_prefix_cache:
            causes = [Cause("not_cacheable")] * len(contents)
        else:
            causes = self._causes(contents[:end])
            causes += [Cause("partial_block")] * (len(contents) - end)
        self._looked_up[request.request_id] = causes, contents[:end]
        return result

    def _causes(self, contents: list[Content]) -> list[Cause]:
        causes: list[Cause] = []
        in_cache = set(self._content.values())
        tokens = {token for _, token in (*in_cache, *self._evicted, *self._requested)}
        for position, content in enumerate(contents):
            if content in in_cache:
                is_broken = not in_cache.issuperset(contents[:position])
                causes.append(Cause("broken_prefix" if is_broken else "unknown"))
            elif content in self._evicted:
                causes.append(self._evicted[content])
            elif content in self._requested:
                causes.append(self._requested[content])
            else:
                causes.append(Cause("extra_keys" if content[1] in tokens else "new_tokens"))
        return causes

    def _allocate(self, call: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        name = request.request_id
        self._allocates_for = name
        looked_up = self._looked_up.pop(name, None)
        result = call(request, *args, **kwargs)
        self._allocates_for = None
        if result is not None and looked_up is not None:
            causes, contents = looked_up
            self._allocated[name] = causes
            cause = Cause("not_stored", self._step, name)
            self._requested |= dict.fromkeys(contents, cause)
        return result

    def _store(
        self,
        call: Callable[..., Any],
        request: Any,
        blocks: list[Any],
        num_cached_blocks: int,
        num_full_blocks: int,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        call(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
        for position in range(num_cached_blocks, num_full_blocks):
            content = self._content_of(request, position)
            self._content[blocks[position].block_id] = content
            self._evicted.pop(content, None)

    def _evict(self, call: Callable[..., Any], block: Any) -> bool:
        evicted: bool = call(block)
        if evicted:
            content = self._content.pop(block.block_id)
            if content not in self._content.values():
                self._evicted[content] = Cause("evicted", self._step, self._allocates_for)
        return evicted

    def _reset(self, call: Callable[..., Any]) -> bool:
        done: bool = call()
        if done:
            for content in self._content.values():
                self._evicted[content] = Cause("evicted", self._step)
            self._content.clear()
        return done

    def _content_of(self, request: Any, position: int) -> Content:
        lora = request.lora_request.lora_name if request.lora_request else ""
        end = (position + 1) * self._block_size
        return (lora, request.cache_salt or ""), tuple(request.all_token_ids[:end])
