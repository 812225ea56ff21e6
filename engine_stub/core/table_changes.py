"""What a step does to the block tables of sequences that run, or come back to run."""

from __future__ import annotations

import msgspec


class TableChanges(msgspec.Struct):
    """In what tables differ from those of the step before; lists in it are never changed.

    Sequences that are admitted with a first table are not in it, as the worker is told of them in
    full; nor are those that lose theirs.

    Attributes:
        appended: By sequence id the blocks that came to the end of a table.
        replaced: By sequence id the whole table, where that does not describe the change, and
            those of forks.
    """

    appended: dict[int, list[int]] = {}
    replaced: dict[int, list[int]] = {}

    def append(self, seq_id: int, blocks: list[int]) -> None:
        """Note that `blocks` have come to a table's end."""
        if seq_id in self.replaced:
            self.replaced[seq_id] = self.replaced[seq_id] + blocks
        elif blocks:
            self.appended[seq_id] = self.appended.get(seq_id, []) + blocks

    def replace(self, seq_id: int, blocks: list[int]) -> None:
        """Note that a table is another one, that of `blocks`."""
        self.appended.pop(seq_id, None)
        self.replaced[seq_id] = blocks

    def is_plain(self, seq_id: int) -> bool:
        """Whether a table has stayed as it was, or has grown by one block."""
        return len(self.appended.get(seq_id, ())) <= 1 and seq_id not in self.replaced
