"""The cached prefix that is nearest to a prompt, and the first token in which the two differ."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from seqtop.misses.pool_replay import PoolReplay, prefix_key
from seqtop.state import EngineState, SequenceState

MAX_PREFIXES = 2**14
"""Prefixes whose continuations are kept: up to 10 MB."""
_MAX_CONTINUATIONS = 8
"""The newest continuations of one prefix that are kept."""
_CONTEXT = 24
"""Characters of text before the first difference, and from it on."""


class PrefixDifference(NamedTuple):
    """The first difference between a sequence and the nearest cached prefix."""

    request_id: str
    """The request that stored the cached prefix."""
    position: int
    """The first token that differs, from 0."""
    token_id: int
    other_token_id: int
    before: str | None
    """The end of the text that both have in common; `None` if the text of one is not known."""
    text: str | None
    """The text of the sequence from the first difference on."""
    other_text: str | None


class _Block(NamedTuple):
    """A block that continues a prefix."""

    seq_id: int
    request_id: str
    position: int
    """The logical position of the block."""


class NearestPrefixes:
    """The blocks that continue each prefix, by the hash of its last block.

    The tokens are read from the state, which forgets requests that ended long ago.
    """

    def __init__(self) -> None:
        self._continuations: OrderedDict[bytes, OrderedDict[bytes, _Block]] = OrderedDict()

    def add(self, state: EngineState, sequence: SequenceState, hashes: Sequence[bytes]) -> None:
        """Adds the full blocks of a sequence of `state`, by their hashes from the first on."""
        parent = prefix_key(state, sequence)
        for position, content in enumerate(hashes):
            blocks = self._continuations.setdefault(parent, OrderedDict())
            self._continuations.move_to_end(parent)
            blocks[content] = _Block(sequence.seq_id, sequence.request_id, position)
            blocks.move_to_end(content)
            if len(blocks) > _MAX_CONTINUATIONS:
                blocks.popitem(last=False)
            parent = content
        while len(self._continuations) > MAX_PREFIXES:
            self._continuations.popitem(last=False)

    def difference(
        self,
        state: EngineState,
        pool: PoolReplay,
        sequence: SequenceState,
        hashes: Sequence[bytes],
        num_found: int,
    ) -> PrefixDifference | None:
        """Returns the first difference to the cached prefix that has most tokens in common.

        Args:
            state: The state.
            pool: The pool as the sequence finds it.
            sequence: A sequence of the state.
            hashes: The hashes of its full blocks that are looked up.
            num_found: Its leading blocks that were found.
        """
        if num_found >= len(hashes):
            return None
        parent = hashes[num_found - 1] if num_found else prefix_key(state, sequence)
        own = pool.tokens(sequence, num_found)
        nearest, most = None, -1 if num_found else 0
        for content, block in self._continuations.get(parent, {}).items():
            other = state.sequences.get(block.seq_id)
            is_known = other is not None and other.request_id == block.request_id
            if other is None or not is_known or not pool.has(content):
                continue
            tokens = pool.tokens(other, num_found)
            num_equal = _num_equal(own, tokens)
            if most < num_equal < len(own) and num_equal < len(tokens):
                nearest, most = (other, tokens[num_equal]), num_equal
        if nearest is None:
            return None
        other, other_token_id = nearest
        before = text = other_text = None
        one, two = _text(state, sequence), _text(state, other)
        if one is not None and two is not None:
            length = _num_equal(one, two)
            before = one[max(length - _CONTEXT, 0) : length]
            text, other_text = one[length : length + _CONTEXT], two[length : length + _CONTEXT]
        position = num_found * pool.block_size + most
        return PrefixDifference(
            other.request_id, position, own[most], other_token_id, before, text, other_text
        )


def _num_equal(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns the number of leading items that two sequences have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (own, same) in pairs if own != same), min(len(one), len(other)))


def _text(state: EngineState, sequence: SequenceState) -> str | None:
    """Returns the text of prompt and output; `None` if that of the prompt is not known."""
    prompt = state.requests[sequence.request_id].prompt
    return None if prompt is None else prompt + sequence.text
