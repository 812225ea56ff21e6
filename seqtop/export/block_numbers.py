"""Small numbers for the blocks of prompts, which are equal where prefixes are shared."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from seqtop.state import RequestState


class BlockNumbers:
    """Numbers blocks in the order in which they are first seen, from 0.

    A block has the number of another one if it has the same tokens and all blocks before it are
    equal, too. Requests with different adapters or cache salts share none. The numbers say nothing
    else about tokens.

    Args:
        block_size: Tokens per block. The last block of a prompt may have fewer.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._numbers: dict[bytes, int] = {}

    def of_prompt(self, request: RequestState, *, only_full: bool = False) -> list[int]:
        """Returns the numbers of the blocks of a prompt; empty if its tokens are unknown."""
        tokens: Sequence[int] = request.prompt_token_ids
        end = len(tokens) - len(tokens) % self.block_size if only_full else len(tokens)
        digest = blake2b(f"{request.lora}\0{request.cache_salt}".encode(errors="replace")).digest()
        numbers = []
        for start in range(0, end, self.block_size):
            block = array("q", tokens[start : start + self.block_size])
            digest = blake2b(digest + block.tobytes(), digest_size=16).digest()
            numbers.append(self._numbers.setdefault(digest, len(self._numbers)))
        return numbers
