"""Derives why prompts are not in the prefix cache, from what the cache stored and evicted before.

An engine, or the adapter of one, keeps a `PrefixHistory`, reports to it what its cache does in the
order in which it happens, and publishes the result as `SequenceUpdate.prefix_misses`. Hashes never
leave the process that has the history.

The history is bounded. It forgets the blocks that it has not met for longest. For a block that it
does not know, it then answers `unknown` instead of `new_tokens`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from seqtop.wire.messages import MissCause, PrefixMiss

MAX_BLOCKS = 2**17
"""Blocks in a history: two million tokens with blocks of 16, and up to 35 MB, or twice as much
where hashes of tokens alone differ."""

MAX_RUNS = 32
"""Runs of blocks with the same cause in one result. Later ones are added up by cause."""

_LastEvent: TypeAlias = Literal["requested", "stored", "evicted"]


class PrefixLookup(NamedTuple):
    """A sequence that was admitted, as the prefix cache found it."""

    block_size: int
    """Tokens per block."""
    num_tokens: int
    """The tokens of the sequence, including output if it is admitted again."""
    num_hit_tokens: int
    """The leading tokens that were found; full blocks."""
    hashes: Sequence[bytes]
    """The hashes of the full blocks after these, except one that holds the last token. Each covers
    all tokens before it and all else that determines the content, such as the LoRA adapter. The
    list may be cut: the causes of the blocks beyond it are unknown."""
    token_hashes: Sequence[bytes]
    """A hash of the tokens alone for each of `hashes`. For blocks that nothing but tokens
    determines, the two are always equal, or never."""
    is_cacheable: bool = True
    """False if the engine has to compute all tokens of this sequence."""


class _Block(NamedTuple):
    """The last event of a block's content."""

    last_met: int
    """The last step in which it was requested, stored or evicted."""
    last_event: _LastEvent
    step: int
    """The step of that event."""
    request_id: str | None
    """The request that had the tokens, stored the block, or needed the room; `None` if unknown."""


class PrefixHistory:
    """A bounded history of the contents of a prefix cache.

    Args:
        known_since: The step since which all events are reported; `None` if no event has been
            missed.
        max_blocks: Blocks to remember.
    """

    def __init__(self, *, known_since: int | None = None, max_blocks: int = MAX_BLOCKS) -> None:
        self._known_since = known_since
        self._max_blocks = max_blocks
        # In the order in which they were last met.
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        # By hashes of tokens alone that are the hash of no block: the last request with these.
        self._tokens: OrderedDict[bytes, _Block] = OrderedDict()

    def store(
        self, step: int, request_id: str | None, block_hash: bytes, token_hash: bytes
    ) -> None:
        """Adds a block of a request to the cache; the hashes are those of `PrefixLookup`."""
        stored = _Block(step, "stored", step, request_id)
        self._set(self._blocks, block_hash, stored)
        if token_hash != block_hash:
            self._set(self._tokens, token_hash, stored)

    def evict(self, step: int, request_id: str | None, block_hash: bytes) -> None:
        """Removes a block from the cache.

        Args:
            step: The number of the step.
            request_id: The request that got the block; `None` if that is unknown.
            block_hash: The hash of the former content.
        """
        self._set(self._blocks, block_hash, _Block(step, "evicted", step, request_id))

    def evict_all(self, step: int) -> None:
        """Empties the cache, for no request."""
        for block_hash, block in self._blocks.items():
            if block.last_event == "stored":
                self._blocks[block_hash] = _Block(step, "evicted", step, None)

    def forget(self, step: int) -> None:
        """Forgets everything before `step`, because events have been missed."""
        self._blocks.clear()
        self._tokens.clear()
        self._known_since = step

    def look_up(
        self, step: int, request_id: str | None, lookups: Sequence[PrefixLookup]
    ) -> list[list[PrefixMiss]]:
        """Returns the causes of the misses of each sequence of a request that is admitted.

        The numbers of tokens of a result add up to the tokens that were not found.
        """
        misses = [self._misses(lookup) for lookup in lookups]
        for lookup in lookups:
            self._meet(step, request_id, lookup)
        return misses

    def _misses(self, lookup: PrefixLookup) -> list[PrefixMiss]:
        size, num_tokens = lookup.block_size, lookup.num_tokens
        if not lookup.is_cacheable:
            return [PrefixMiss(cause="not_cacheable", num_tokens=num_tokens)]
        runs = _Runs()
        is_broken = False
        for block_hash, token_hash in zip(lookup.hashes, lookup.token_hashes, strict=True):
            cause, at, by = self._cause(block_hash, token_hash, is_broken=is_broken)
            is_broken = is_broken or cause != "unknown"
            runs.add(cause, size, at, by)
        num_in_blocks = (num_tokens - 1) // size * size
        runs.add("unknown", num_in_blocks - lookup.num_hit_tokens - len(lookup.hashes) * size)
        runs.add("partial_block", num_tokens - num_in_blocks)
        return runs.misses

    def _cause(
        self, block_hash: bytes, token_hash: bytes, *, is_broken: bool
    ) -> tuple[MissCause, int | None, str | None]:
        """Returns the cause of one missed block, with the step and the request of it.

        Args:
            block_hash: The hash of the block.
            token_hash: The hash of its tokens alone.
            is_broken: True if a block before it is not in the cache.
        """
        block = self._blocks.get(block_hash)
        if block is not None:
            match block.last_event:
                case "evicted":
                    return "evicted", block.step, block.request_id
                case "requested":
                    return "not_stored", block.step, block.request_id
                case "stored":
                    return ("broken_prefix" if is_broken else "unknown"), None, None
        other = self._tokens.get(token_hash) or self._blocks.get(token_hash)
        if other is not None:
            return "extra_keys", None, None if other.last_event == "evicted" else other.request_id
        if self._known_since is not None:
            return "unknown", self._known_since, None
        return "new_tokens", None, None

    def _meet(self, step: int, request_id: str | None, lookup: PrefixLookup) -> None:
        """Records that a request has these blocks, which it will compute."""
        requested = _Block(step, "requested", step, request_id)
        for block_hash, token_hash in zip(lookup.hashes, lookup.token_hashes, strict=True):
            block = self._blocks.get(block_hash)
            if block is None or block.last_event == "requested":
                block = requested
            else:
                block = _Block(step, block.last_event, block.step, block.request_id)
            self._set(self._blocks, block_hash, block)
            if token_hash != block_hash:
                self._set(self._tokens, token_hash, requested)

    def _set(self, blocks: OrderedDict[bytes, _Block], key: bytes, block: _Block) -> None:
        blocks[key] = block
        blocks.move_to_end(key)
        if len(blocks) > self._max_blocks:
            _, forgotten = blocks.popitem(last=False)
            self._known_since = max(self._known_since or 0, forgotten.last_met + 1)


class _Runs:
    """Consecutive tokens with the same cause, as one `PrefixMiss`."""

    def __init__(self) -> None:
        self.misses: list[PrefixMiss] = []
        self._sums: dict[MissCause, PrefixMiss] = {}

    def add(
        self,
        cause: MissCause,
        num_tokens: int,
        step: int | None = None,
        request_id: str | None = None,
    ) -> None:
        if num_tokens <= 0:
            return
        last = self.misses[-1] if self.misses else None
        if last and (last.cause, last.step, last.request_id) == (cause, step, request_id):
            last.num_tokens += num_tokens
        elif len(self.misses) < MAX_RUNS:
            miss = PrefixMiss(cause=cause, num_tokens=num_tokens, step=step, request_id=request_id)
            self.misses.append(miss)
        elif cause in self._sums:
            self._sums[cause].num_tokens += num_tokens
        else:
            self._sums[cause] = PrefixMiss(cause=cause, num_tokens=num_tokens)
            self.misses.append(self._sums[cause])
