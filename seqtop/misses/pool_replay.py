"""The pool of a recorded run, repeated without its scheduler, with more blocks than it had.

Requests are admitted, get their blocks and free them in the recorded steps; only what the prefix
cache finds for them differs. That is exact as long as more blocks would not have changed the
schedule: with them, requests that wait for blocks would be admitted earlier, and none preempted.
`docs/prefix-cache.md` has the size of this error.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from seqtop.misses.pool_sizes import MAX_CONTENTS, PoolSizes
from seqtop.state import EngineState, SequenceState
from seqtop.wire.messages import EngineInfo

GROWTH = (0, 5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400)
"""The sizes of the pools: percent of the recorded blocks more."""

_HASH_LENGTH = 8
_MAX_POOL = 2**31
"""The largest pool of an engine that is believed."""


def unknown_reason(info: EngineInfo | None) -> str:
    """Returns a sentence on why the misses of larger pools are not known; empty if they are."""
    if info is None:
        return "The engine has not described itself."
    if not info.enable_prefix_caching:
        return "Prefix caching is off."
    if reason := info.not_available.get("prefix_misses"):
        return f"The engine does not report misses: {reason}."
    if info.redacted:
        return "Without tokens, which are redacted, equal blocks cannot be recognized."
    if len(info.kv_cache_groups) > 1:
        return "Sequences have several block tables, of which each has its own misses."
    if not (info.block_size > 0 and 0 < info.num_gpu_blocks <= _MAX_POOL):
        return "The size of the pool is not known."
    return ""


class _Table:
    """The blocks of a sequence, and the hashes of its full ones."""

    __slots__ = ("blocks", "hashes", "num_computed")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []
        self.num_computed = 0
        """Leading blocks that are full and computed."""


class PoolReplay:
    """The pool of one engine, with several sizes. Fed with what changes block tables, in order.

    Args:
        state: The state of the engine, from which tokens and tables are read.
        info: The engine, without an `unknown_reason`.
        max_contents: The most contents of blocks that are followed.
    """

    def __init__(
        self, state: EngineState, info: EngineInfo, *, max_contents: int = MAX_CONTENTS
    ) -> None:
        usable = max(info.num_gpu_blocks - max(info.num_reserved_blocks, 0), 1)
        is_vllm = info.engine.startswith("vLLM")
        self.pools = PoolSizes(
            [usable + usable * percent // 100 for percent in GROWTH],
            queues_empty=is_vllm,
            max_contents=max_contents,
        )
        self.num_taken = 0
        """Blocks that were taken from the pool so far, for new content."""
        self._caches_when_scheduled = is_vllm
        self._state = state
        self.block_size = info.block_size
        self._tables: dict[int, _Table] = {}
        self._num_references: Counter[int] = Counter()
        self._contents: dict[int, bytes] = {}
        """The contents of blocks in use."""
        self._num_unnamed = 0
        """Blocks of sequences that were admitted and ended in one step, whose tables are unknown.
        """
        self._resume()

    def hashes(self, sequence: SequenceState, num_blocks: int) -> Sequence[bytes]:
        """Returns the hashes of leading full blocks, as far as their tokens are known.

        The sequence has to be in the state, and unfinished or just finished.
        """
        table = self._tables.get(sequence.seq_id)
        return self._hash(sequence, _Table() if table is None else table, num_blocks)

    def full_hashes(self, seq_id: int) -> Sequence[bytes]:
        """Returns the hashes of the blocks of a sequence that are full and computed."""
        table = self._tables.get(seq_id)
        return table.hashes[: table.num_computed] if table is not None else ()

    def has(self, content: bytes) -> bool:
        """Returns whether the recorded pool has a content; false for one beside the sample."""
        return self.pools.find(content) == 0

    def tokens(self, sequence: SequenceState, position: int) -> array[int]:
        """Returns the tokens of the block at a logical position; none if they are not known."""
        prompt = self._state.requests[sequence.request_id].prompt_token_ids
        num_prompt = len(prompt)
        if num_prompt != sequence.num_prompt_tokens:
            return array("q")
        start = position * self.block_size
        end = start + self.block_size
        tokens = array("q", prompt[start:end])
        if end > num_prompt:
            output = sequence.output_token_ids
            tokens.extend([*output[max(start - num_prompt, 0) : end - num_prompt]])
        return tokens

    def first_sizes(self, hashes: Iterable[bytes]) -> list[int | None]:
        """Returns for each block of a prefix the index of the smallest size that finds it.

        It is the number of sizes where all have evicted it, and `None` where none has had it. A
        block is found only behind those before it. Blocks that are not in the sample have the size
        of the one before.
        """
        sizes: list[int | None] = []
        last: int | None = 0
        for content in hashes:
            if last is not None and self.pools.follows(content):
                index = self.pools.find(content)
                last = None if index is None else max(index, last)
            sizes.append(last)
        return sizes

    def admit(
        self,
        sequence: SequenceState,
        num_tokens: int,
        num_hits: int,
        first_sizes: Sequence[int | None],
    ) -> None:
        """Gives an admitted sequence its blocks.

        Args:
            sequence: The sequence, after the step.
            num_tokens: Its tokens when it was admitted.
            num_hits: Leading blocks that were found.
            first_sizes: Its `first_sizes`, before it was admitted.
        """
        self.release(sequence.seq_id)
        table = self._tables[sequence.seq_id] = _Table()
        table.blocks = sequence.block_table.copy()
        if not table.blocks:  # it has ended in the same step
            prompt = self._state.requests[sequence.request_id].prompt_token_ids
            num_known = len(prompt) + len(sequence.output_token_ids)
            num_blocks = -(-max(min(num_tokens, num_known), 0) // self.block_size)
            first = -1 - self._num_unnamed
            table.blocks = list(range(first, first - num_blocks, -1))
            self._num_unnamed += num_blocks
        num_sizes = len(self.pools.sizes)
        hashes = self._hash(sequence, table, len(first_sizes))
        for position, block in enumerate(table.blocks):
            self._num_references[block] += 1
            if position >= num_hits:
                self.num_taken += self._num_references[block] == 1
            if position < len(hashes):
                size = 0 if position < num_hits else first_sizes[position]
                self._fill(block, hashes[position], num_sizes if size is None else size)
        table.num_computed = num_hits
        self._use()
        if self._caches_when_scheduled:
            self.compute(sequence)

    def extend(self, sequence: SequenceState) -> None:
        """Gives a sequence the blocks that were appended to its table, or a new table."""
        table = self._tables.get(sequence.seq_id)
        if table is None:
            table = self._tables[sequence.seq_id] = _Table()
        old, new = table.blocks, sequence.block_table
        if len(new) == len(old) and new == old:
            return
        is_longer = new[: len(old)] == old
        for block in new[len(old) :] if is_longer else new:
            self._num_references[block] += 1
            self.num_taken += self._num_references[block] == 1
        if is_longer:
            old.extend(new[len(old) :])
        else:
            self._free(old)
            table.blocks, table.num_computed = new.copy(), 0
        self._use()

    def compute(self, sequence: SequenceState) -> None:
        """Adds the blocks that a sequence has filled to the prefix cache."""
        table = self._tables.get(sequence.seq_id)
        if table is None:
            return
        num_full = sequence.num_computed_tokens // self.block_size
        if num_full <= table.num_computed:
            return
        hashes = self._hash(sequence, table, min(num_full, len(table.blocks)))
        for position in range(table.num_computed, len(hashes)):
            self._fill(table.blocks[position], hashes[position], 0)
            self.pools.mark_computed(hashes[position])
        table.num_computed = max(len(hashes), table.num_computed)

    def release(self, seq_id: int) -> None:
        """Frees the blocks of a sequence, the last one first."""
        table = self._tables.pop(seq_id, None)
        if table is not None:
            self._free(table.blocks)
            self._use()

    def _fill(self, block: int, content: bytes, first_size: int) -> None:
        """Sets the content of a block in use; of blocks with equal contents, the first has it."""
        if block not in self._contents and not self.pools.holds(content):
            self._contents[block] = content
            self.pools.hold(content, first_size)

    def _free(self, blocks: Sequence[int]) -> None:
        references = self._num_references
        for block in reversed(blocks):
            if references[block] > 1:
                references[block] -= 1
            else:
                del references[block]
                self.pools.release(self._contents.pop(block, None))

    def _use(self) -> None:
        self.pools.use(len(self._num_references))

    def _resume(self) -> None:
        """Takes over the tables of a state, and as far as it is known what the cache contains."""
        state = self._state
        for sequence in state.sequences.values():
            if sequence.block_table:
                self.extend(sequence)
                self.compute(sequence)
        for cached in (state.cached_blocks or {}).values():
            writer = state.sequences.get(cached.seq_id)
            if writer is None or writer.request_id != cached.request_id or cached.position < 0:
                continue
            hashes = self.hashes(writer, cached.position + 1)
            if len(hashes) > cached.position and not self.pools.holds(hashes[cached.position]):
                self.pools.hold(hashes[cached.position])
                self.pools.release(hashes[cached.position])
        self._use()
        self.num_taken = 0

    def _hash(self, sequence: SequenceState, table: _Table, num_blocks: int) -> Sequence[bytes]:
        hashes = table.hashes
        if len(hashes) < num_blocks:
            parent = hashes[-1] if hashes else prefix_key(self._state, sequence)
            for position in range(len(hashes), num_blocks):
                tokens = self.tokens(sequence, position)
                if len(tokens) < self.block_size:
                    break
                parent = blake2b(parent + tokens.tobytes(), digest_size=_HASH_LENGTH).digest()
                hashes.append(parent)
        return hashes[:num_blocks]


def prefix_key(state: EngineState, sequence: SequenceState) -> bytes:
    """Returns what stands for the hash of a block before the first one of a sequence.

    It has what else determines the content of blocks, so that it is in the whole chain of hashes.
    """
    request = state.requests[sequence.request_id]
    return f"{request.lora}\0{request.cache_salt}".encode()
