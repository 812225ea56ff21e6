"""The blocks of one sequence, and the chain of hashes that identifies them in the prefix cache."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile

from seqtop.sequence import Sequence


@dataclass(slots=True)
class BlockTable:
    """A sequence's blocks, in the order of its tokens.

    The lists of blocks are never changed, only replaced, so that callers may keep them.

    Attributes:
        blocks: Physical block numbers on the device; empty while swapped out.
        cached_blocks: The leading blocks that are full and computed, so that their content is in
            the prefix cache.
        hashes: Hash of each full block, computed on first use.
        capacity: The number of tokens up to which the sequence needs neither another block nor a
            copy of a shared one.
    """

    blocks: list[int] = field(default_factory=list)
    cached_blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    capacity: int = 0

    def hash_blocks(self, seq: Sequence, num_blocks: int) -> None:
        """Extends the chain of hashes to `num_blocks` blocks of the sequence."""
        hashes, size = self.hashes, seq.block_size
        if num_blocks <= len(hashes):
            return
        first = len(hashes) * size
        tokens = array("q", seq.get_token_ids()[first : num_blocks * size])
        content, num_bytes = tokens.tobytes(), size * tokens.itemsize
        # Whatever else determines the content salts the first hash, and so the whole chain.
        parent = hashes[-1] if hashes else repr(seq.extra_hash()).encode()
        for start in range(0, len(content), num_bytes):
            parent = blake2b(parent + content[start : start + num_bytes], digest_size=16).digest()
            hashes.append(parent)


def common_prefix(lists: list[list[int]]) -> list[int]:
    """Returns the longest common prefix of `lists`: of a single one itself, only to be read."""
    if len(lists) == 1:
        return lists[0]
    columns = zip(*lists, strict=False)
    return [column[0] for column in takewhile(lambda column: len({*column}) == 1, columns)]
