"""Observes which pages SGLang's radix tree has, by the calls that change that.

The tree is walked only when a publisher needs all of it: when an engine that has run before is
observed, and after observations were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from seqtop.adapters.observations import AnyCacheEvent, BlocksCached, BlocksUncached, CacheReset
from seqtop.adapters.probing import missing_attributes
from seqtop.adapters.sglang.page_tables import PageTables
from seqtop.adapters.wrapping import Wrap

_REQUIRED: Final = ("insert", "reset", "_drain_device_frees", "tree_core.walk_for_kv_canary")
_CALLERS: Final = ("checkpoint_into_tree", "cache_finished_req", "cache_unfinished_req")
"""Methods that insert pages of a request: that of 0.5.23, and those of versions before."""


class RadixTree:
    """Records the pages that one scheduler's radix tree gets and evicts, in order.

    A page that the tree has and a request holds is locked, and in the request's block table.

    Args:
        scheduler: SGLang's scheduler, of which `is_observable`.
        wrap: Wraps a method.
        tables: Reads the numbers of pages.
        id_of: Returns the id that a request has in observations.
    """

    def __init__(
        self, scheduler: Any, wrap: Wrap, tables: PageTables, id_of: Callable[[Any], str]
    ) -> None:
        self._tree = scheduler.tree_cache
        self._page_size: int = scheduler.page_size
        self._tables = tables
        self._id_of = id_of
        self._events: list[AnyCacheEvent] = []
        self._req: Any = None
        """The request whose pages are being inserted."""
        for name in _CALLERS:
            if hasattr(self._tree, name):
                wrap(self._tree, name, before=self._before_caching, after=self._after_caching)
        wrap(self._tree, "insert", after=self._after_insert)
        wrap(self._tree, "_drain_device_frees", before=self._before_frees)
        wrap(self._tree, "reset", after=self._after_reset)

    def take(self) -> list[AnyCacheEvent]:
        """Returns the changes since the last call. Their pages may arrive later."""
        events, self._events = self._events, []
        return events

    def content(self) -> list[BlocksCached]:
        """Returns all pages of the tree, with its changes so far. It may wait for the device."""
        self._events = []
        tree, size = self._tree, self._page_size
        if not tree.evictable_size() + tree.protected_size():
            return []
        walk = tree.tree_core.walk_for_kv_canary(False, False)
        runs: list[BlocksCached] = []
        end = -1
        positions, slots = walk.positions.tolist(), walk.slot_indices.tolist()
        for position, slot in zip(positions[::size], slots[::size], strict=True):
            if position != end:
                runs.append(BlocksCached("", position // size, []))
            runs[-1].blocks.append(slot // size)
            end = position + size
        return runs

    def _before_caching(self, req: Any, *_: Any, **__: Any) -> None:
        self._req = req

    def _after_caching(self, *_: Any, **__: Any) -> None:
        self._req = None

    def _after_insert(self, result: Any, params: Any, *_: Any, **__: Any) -> None:
        """Records the pages after those that the tree has had. It frees the others' duplicates."""
        if params.value is None or getattr(result, "rotation_tail_declined", False):
            return
        size, num_known = self._page_size, result.prefix_len
        end = min(len(params.key), len(params.value)) // size * size
        if end > num_known:
            pages = self._tables.read_pages(params.value[num_known:end])
            request_id = self._id_of(self._req) if self._req is not None else ""
            self._events.append(BlocksCached(request_id, num_known // size, pages))

    def _before_frees(self, frees: Any, *_: Any, **__: Any) -> None:
        for component, values in frees.items():
            if component.name == "FULL":  # the others are the pools of other layers
                self._events += [BlocksUncached(self._tables.read_pages(value)) for value in values]

    def _after_reset(self, *_: Any, **__: Any) -> None:
        self._events.append(CacheReset())


def is_observable(scheduler: Any) -> bool:
    """Returns whether all changes of a scheduler's radix tree are observed.

    Those of a hierarchical cache, which loads pages from the host, are not.
    """
    tree = scheduler.tree_cache
    has_host_pages = getattr(tree, "cache_controller", None) is not None
    return not has_host_pages and not missing_attributes(tree, _REQUIRED)
