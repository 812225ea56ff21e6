"""Hashes of blocks by their tokens alone, unlike an engine's, which cover adapters and salt too."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_HASH_LENGTH = 16


class TokenHashes:
    """The token hashes of the full blocks of one sequence, computed on first use.

    Each covers all tokens up to the end of its block.
    """

    def __init__(self) -> None:
        self._hashes: list[bytes] = []

    def of_blocks(
        self,
        token_ids: Sequence[int],
        block_size: int,
        first: int,
        block_hashes: Sequence[bytes],
    ) -> Sequence[bytes]:
        """Returns a token hash for each of `block_hashes`, as `PrefixLookup` needs them.

        Args:
            token_ids: The tokens of the sequence. Those of earlier calls are not read again.
            block_size: Tokens per block.
            first: The logical position of the first block.
            block_hashes: The engine's hashes, which are returned if the tokens are not known.
        """
        hashes, end = self._hashes, first + len(block_hashes)
        if end * block_size > len(token_ids):
            return block_hashes
        for index in range(len(hashes), end):
            block = array("q", token_ids[index * block_size : (index + 1) * block_size])
            parent = hashes[-1] if hashes else b""
            hashes.append(blake2b(parent + block.tobytes(), digest_size=_HASH_LENGTH).digest())
        return hashes[first:end]
