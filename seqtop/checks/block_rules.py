"""Whose each block is, and whether the pool's figures say the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seqtop.checks.finding import Finding, Rules
from seqtop.state import EngineState
from seqtop.state.block_owners import BlockOwners
from seqtop.state.model import SequenceState
from seqtop.wire.messages import Event, RequestFinished, Step


class BlockRules(Rules):
    """Of block tables, the prefix cache and swaps; call `before` and `after` each event."""

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._owners = BlockOwners()
        self._group_owners = BlockOwners()
        """The same of the KV-cache groups after the first, whose blocks are never the first's."""
        self._swapped_out: set[int] = set()
        """Host blocks that hold something."""
        self._num_named_before = 0
        self._num_released = 0
        """Blocks that no table names any more since requests have ended after the last step."""
        self._cached_unused: set[int] = set()
        """Blocks that the prefix cache knows and no block table names."""
        self._num_unused_late = 0
        """Of these, how many came to be so after the last step."""
        for sequence in state.sequences.values():
            self._owners.update(sequence.seq_id, sequence.block_table)
            self._group_owners.update(sequence.seq_id, _group_blocks(sequence))
        self._sort_cached(state.cached_blocks or ())

    def before(self, event: Event) -> Iterator[Finding]:
        """Look at what `event` is about to act on."""
        if isinstance(event, Step):
            # Ends are told after their step, so its figures are comparable only now.
            yield from self.pool()
            yield from self._swaps(event)
            self._num_released = self._num_unused_late = 0
        self._num_named_before = self._num_named(0)

    def after(self, event: Event, touched: Iterable[int]) -> Iterator[Finding]:
        """Look at the tables of the sequences that `event` has `touched`."""
        added: dict[int, list[int]] = {}
        cache_changes = _cache_changes(event)
        changed = set(cache_changes)
        for seq_id in touched:
            sequence = self.state.sequences.get(seq_id)
            table = sequence.block_table if sequence else []
            known = self._owners.table(seq_id)
            positions = self._owners.update(seq_id, table)
            added[seq_id] = added.get(seq_id, []) + positions
            changed.update(table[position] for position in positions)
            if len(positions) == len(table):  # it did not just grow
                changed.update(known)
            self._group_owners.update(seq_id, _group_blocks(sequence) if sequence else [])
        yield from self._cached_range(cache_changes)
        num_unused = len(self._cached_unused)
        self._sort_cached(changed)
        if not isinstance(event, Step):
            self._num_unused_late += len(self._cached_unused) - num_unused
        if isinstance(event, RequestFinished):
            self._num_released += self._num_named_before - self._num_named(0)
        # Only now: within a step, a block may pass from one sequence to another.
        for seq_id, positions in added.items():
            if sequence := self.state.sequences.get(seq_id):
                yield from self._table(sequence, positions)

    def pool(self) -> Iterator[Finding]:
        """Hold the pool's figures against the tables, as of the last step."""
        stats, info = self.state.stats, self.state.info
        if stats is None or info is None:
            return
        total = stats.num_free_blocks + stats.num_used_blocks + stats.num_cached_blocks
        num_blocks = info.num_gpu_blocks - info.num_reserved_blocks
        if total != num_blocks:
            yield self.finding(
                "pool-sum",
                f"{stats.num_free_blocks} free, {stats.num_used_blocks} used and"
                f" {stats.num_cached_blocks} cached blocks make {total},"
                f" the pool has {num_blocks}",
            )
        num_named = self._num_named(info.num_reserved_blocks)
        # Whoever was aborted since the last step still counted in its figures.
        if stats.num_used_blocks not in (num_named, num_named + self._num_released):
            yield self.finding(
                "block-leak",
                f"{stats.num_used_blocks} blocks are in use, the block tables name {num_named}",
            )

        num_unused = len(self._cached_unused)
        allowed = (num_unused, num_unused - self._num_unused_late)
        if self.state.cached_blocks is not None and stats.num_cached_blocks not in allowed:
            yield self.finding(
                "cache-sum",
                f"{stats.num_cached_blocks} blocks are cached, the prefix cache knows"
                f" {num_unused} that no block table names",
            )

    def _cached_range(self, blocks: Iterable[int]) -> Iterator[Finding]:
        info, cached = self.state.info, self.state.cached_blocks
        if info is None or cached is None:
            return
        for block in blocks:
            if block in cached and not 0 <= block < info.num_gpu_blocks:
                yield self.finding(
                    "block-range",
                    f"block {block} is in the prefix cache; the pool's are 0 to"
                    f" {info.num_gpu_blocks - 1}",
                    block=block,
                )

    def _sort_cached(self, blocks: Iterable[int]) -> None:
        """See anew which of `blocks` the prefix cache knows and no block table names."""
        cached = self.state.cached_blocks
        if cached is None:
            return
        for block in blocks:
            if block in cached and not self._owners.of(block) and not self._group_owners.of(block):
                self._cached_unused.add(block)
            else:
                self._cached_unused.discard(block)

    def _num_named(self, num_reserved: int) -> int:
        """Blocks that some table names, without the reserved ones, which stand for no block."""
        owners = (self._owners, self._group_owners)
        reserved = sum(1 for each in owners for _ in each.below(num_reserved))
        return sum(each.num_blocks for each in owners) - reserved

    def _table(self, sequence: SequenceState, added: list[int]) -> Iterator[Finding]:
        """Look at the logical positions whose block is new to the table, and the last written."""
        info = self.state.info
        if info is None or info.block_size < 1:
            return
        for position in added:
            block = sequence.block_table[position]
            if not 0 <= block < info.num_gpu_blocks:
                yield self.of(
                    sequence,
                    "block-range",
                    f"block {block} at position {position}; the pool's are 0 to"
                    f" {info.num_gpu_blocks - 1}",
                    block,
                )
        written = (sequence.num_computed_tokens - 1) // info.block_size
        positions = {*added, written} if 0 <= written < len(sequence.block_table) else {*added}
        for position in sorted(positions):
            block = sequence.block_table[position]
            if block < info.num_reserved_blocks:
                continue
            for other_id, other_position in self._owners.of(block).items():
                other = self.state.sequences.get(other_id)
                if other is None or other_id == sequence.seq_id:
                    continue
                if not self._in_common(sequence, position, other, other_position, info.block_size):
                    yield self.of(
                        sequence,
                        "block-shared",
                        f"block {block} is also position {other_position} of sequence {other_id},"
                        " whose tokens differ; only equal prefixes may share",
                        block,
                    )

    def _in_common(
        self, one: SequenceState, position: int, other: SequenceState, at: int, block_size: int
    ) -> bool:
        """Whether two sequences may hold one block: same place, same tokens up to its end.

        Only computed tokens count. A fork holds the block that its parent's newest token would go
        to, until one of them needs it and is given a copy.
        """
        tokens, others = self._tokens(one), self._tokens(other)
        if tokens is None or others is None:
            return True
        computed = min(one.num_computed_tokens, other.num_computed_tokens)
        end = min((position + 1) * block_size, computed)
        return position == at and tokens[:end] == others[:end]

    def _tokens(self, sequence: SequenceState) -> list[int] | None:
        prompt = self.state.requests[sequence.request_id].prompt_token_ids
        if len(prompt) != sequence.num_prompt_tokens:
            return None  # redacted
        return [*prompt, *sequence.output_token_ids]

    def _swaps(self, step: Step) -> Iterator[Finding]:
        """Swaps act on the blocks as they were before the step."""
        for device_block, host_block in step.execute.blocks_to_swap_out:
            if not self._owners.of(device_block):
                yield self._swap_finding(step, "out", device_block, "device")
            self._swapped_out.add(host_block)
        for host_block, _ in step.execute.blocks_to_swap_in:
            if host_block not in self._swapped_out:
                yield self._swap_finding(step, "in", host_block, "host")
            self._swapped_out.discard(host_block)

    def _swap_finding(self, step: Step, way: str, block: int, where: str) -> Finding:
        message = f"swap {way} of {where} block {block}, which nobody holds there"
        return Finding("swap-map", message, step.step, block=block)


def _cache_changes(event: Event) -> set[int]:
    """The blocks of which a step says that the prefix cache knows them, or has forgotten them."""
    if not isinstance(event, Step) or event.newly_cached_blocks is None:
        return set()
    return {*event.uncached_blocks, *(b for run in event.newly_cached_blocks for b in run.blocks)}


def _group_blocks(sequence: SequenceState) -> list[int]:
    return [block for table in sequence.group_block_tables for block in table]
