"""The numbers of blocks, which transformers counts for each kind of attention by itself.

The pool of transformers has sectors of one size, each of which belongs to one kind of attention
and is divided into blocks of that kind. Kinds with more layers have larger blocks. The pool of
viewers has blocks of one size. Here it is the largest of which every kind's block is a multiple,
so that used and free blocks add up to the memory. A model with one kind of attention has
transformers' own numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import lcm
from typing import Any, Final

from seqtop.adapters.observations import Setting, Tables

_FULL: Final = "full_attention"
REST: Final = "rest"
"""Appended to the name of the main kind: the units of its blocks after the first one."""


class Blocks:
    """Converts the block tables of a `PagedAttentionCache` to those of one pool.

    Args:
        cache: The cache.
    """

    def __init__(self, cache: Any) -> None:
        self._pool = cache.pool
        allocators = cache.cache_allocators
        kinds = sorted(allocators, key=lambda kind: kind != _FULL)  # the main one first
        self._allocators = [allocators[kind] for kind in kinds]
        self._units_per_sector = lcm(*(one.blocks_per_sector for one in self._allocators))
        self._units = [self._units_per_sector // one.blocks_per_sector for one in self._allocators]
        self.tables = [one.block_table for one in self._allocators]
        """By kind, the block tables by request id, which are transformers' own."""
        self._names = kinds
        self.kinds = kinds
        """The kind of each table, if there are several."""
        if self._units[0] > 1:
            self.kinds = [*kinds, f"{kinds[0]}, {REST}"]
        elif len(kinds) == 1:
            self.kinds = []
        reserved = getattr(self._pool, "num_reserved_sectors", 0)
        self.num_reserved = reserved * self._units_per_sector
        self.num_blocks = (self._pool.num_sectors + reserved) * self._units_per_sector
        self.block_size: int = self._allocators[0].tokens_per_page

    @property
    def specs(self) -> list[dict[str, Setting]]:
        """The description of each table."""
        specs: list[dict[str, Setting]] = []
        for kind, one, units in zip(self._names, self._allocators, self._units, strict=True):
            spec: dict[str, Setting] = {"kind": kind, "block_size": one.tokens_per_page}
            window = getattr(one, "sliding_window", None)
            if window is not None:
                # Token t is in slot t modulo the window.
                spec |= {"sliding_window": window, "has_positions": False}
            elif units > 1 and specs:
                spec["has_positions"] = False
            specs.append(spec)
        if self._units[0] > 1:
            specs.append({"kind": f"{self._names[0]}, {REST}", "has_positions": False})
        return specs

    @property
    def num_cached(self) -> int:
        """The blocks in no table whose content can be found."""
        return sum(
            len(one.ledger.cached_blocks) * units
            for one, units in zip(self._allocators, self._units, strict=True)
        )

    def num_free(self, pool: Any = None) -> int:
        """Returns the blocks without content, of the device or of another pool of its shape."""
        pool = pool or self._pool
        num_free: int = pool.num_free_sectors * self._units_per_sector
        for one, units in zip(self._allocators, self._units, strict=True):
            num_free += pool.count_free_blocks(one.index) * units
        return num_free

    def num_in(self, num_sectors: int) -> int:
        """Returns the number of blocks in a number of sectors."""
        return num_sectors * self._units_per_sector

    def size(self, request_id: str) -> int:
        """Returns the number of blocks in all tables of a request, in transformers' numbers."""
        return sum(len(tables.get(request_id, ())) for tables in self.tables)

    def of(self, request_id: str) -> Tables:
        """Returns the tables of a request; empty without any."""
        own = [tables.get(request_id) for tables in self.tables]
        if not any(own):
            return ()
        return self.converted([table or () for table in own])

    def converted(self, own: list[Any]) -> Tables:
        """Converts the tables of a request, one for each kind."""
        if not self.kinds:
            return (list(own[0]),)
        main, units = own[0], self._units[0]
        tables = [[block * units for block in main]]
        tables += [
            list(_units_of(table, units))
            for table, units in zip(own[1:], self._units[1:], strict=True)
        ]
        if units > 1:
            tables.append([unit for unit in _units_of(main, units) if unit % units])
        return tuple(tables)


def _units_of(table: Iterable[int], units: int) -> Iterable[int]:
    return chain.from_iterable(range(block * units, (block + 1) * units) for block in table)
