"""Which sequences hold which physical block: the block tables, turned round."""

from collections.abc import Iterator, Mapping, Sequence

_NOBODY: Mapping[int, int] = {}


class BlockOwners:
    """Kept up to date table by table; a table that has only grown costs its new blocks."""

    def __init__(self) -> None:
        self._owners: dict[int, dict[int, int]] = {}
        self._tables: dict[int, list[int]] = {}
        self.num_shared = 0
        """Blocks that several sequences hold."""

    @property
    def num_blocks(self) -> int:
        """Blocks that some table names."""
        return len(self._owners)

    def below(self, limit: int) -> Iterator[Mapping[int, int]]:
        """The holders of each block below `limit` that some table names.

        An engine may claim any limit: this never costs more than the tables do.
        """
        if limit > len(self._owners):
            return (holders for block, holders in self._owners.items() if block < limit)
        return (self._owners[block] for block in range(limit) if block in self._owners)

    def of(self, block: int) -> Mapping[int, int]:
        """The sequences that hold `block`, each with the logical position it has there."""
        return self._owners.get(block, _NOBODY)

    def table(self, seq_id: int) -> Sequence[int]:
        """A sequence's table as it was last taken over."""
        return self._tables.get(seq_id, ())

    def update(self, seq_id: int, table: list[int]) -> list[int]:
        """Take over a sequence's table as it is now; return the positions that are new."""
        known = self._tables.get(seq_id, [])
        if table[: len(known)] == known:
            first_new = len(known)
        else:
            self._release(seq_id, known)
            first_new = 0
        for position in range(first_new, len(table)):
            holders = self._owners.setdefault(table[position], {})
            self.num_shared += len(holders) == 1 and seq_id not in holders
            holders[seq_id] = position
        if table:
            self._tables[seq_id] = table.copy()
        else:
            self._tables.pop(seq_id, None)
        return list(range(first_new, len(table)))

    def _release(self, seq_id: int, table: list[int]) -> None:
        for block in table:
            holders = self._owners.get(block)
            if holders is not None and holders.pop(seq_id, None) is not None:
                self.num_shared -= len(holders) == 1
                if not holders:
                    del self._owners[block]
