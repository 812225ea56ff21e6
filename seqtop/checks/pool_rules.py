"""Rules on the figures of the KV pools: they have to be those of the block tables."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from seqtop.checks.block_tables import BlockTables, cache_changes
from seqtop.checks.figure_rules import has_impossible_pool
from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.checks.stale_tables import StaleTable, stale_tables
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.text.format import plural
from seqtop.wire.messages import Event, RequestFinished, Step

_MAX_NAMED = 8
"""Requests, and blocks of each, that a finding names."""


class _Comparison:
    """The difference between a figure of the engine and a count, of which each change is reported.

    So a leak is one finding, and not one for each step that follows.
    """

    def __init__(self) -> None:
        self._difference = 0

    def changes(self, figure: int, count: int, *, late: int = 0) -> bool:
        """Returns whether the difference is not zero and not that of the last call.

        Args:
            figure: The engine's figure as of the last step.
            count: The count.
            late: The part of the count's changes since that step, which the figure may not have.
        """
        difference = figure - count
        if difference - self._difference in (0, -late):
            return False
        self._difference = difference
        return difference != 0


class PoolRules(RuleGroup):
    """Rules on the pools of the device and of the host.

    Args:
        state: The state of the engine.
        tables: Its block tables.
    """

    def __init__(self, state: EngineState, tables: BlockTables) -> None:
        super().__init__(state)
        self._tables = tables
        self._has_step = False
        """False before the first step: requests may have ended after the last one of `state`."""
        self._blocks, self._used, self._cached, self._host = (_Comparison() for _ in range(4))
        self._num_held_before = self._num_swapped_before = 0
        self._num_held_late = self._num_swapped_late = self._num_unused_late = 0
        """The changes of the numbers since the last step, by requests that ended after it."""
        self._cached_unused: set[int] = set()
        """Blocks in the prefix cache that no block table names."""
        self._num_excess = 0
        """The blocks that tables named in the last step, less those in use."""
        self._has_stale = False
        """True if some of these tables are stale, which explains the difference."""
        self._stale: set[tuple[int, int]] = set()
        """The sequences and groups whose tables have been reported as stale."""
        self._released: dict[str, list[int]] = {}
        """The blocks that were released in the last step, and between those beside it."""
        self._released_late: dict[str, list[int]] = {}
        """Those of them that were released after the last step."""
        self._update_cached_unused(state.cached_blocks or ())

    def before(self, event: Event) -> Iterator[Finding]:
        """Checks the pools as of the last step."""
        if isinstance(event, Step):
            # Requests finish after their step, so its figures are comparable only now.
            yield from self.end()
            self._num_held_late = self._num_swapped_late = self._num_unused_late = 0
            self._released, self._released_late = self._released_late, {}
            self._has_step = True
        self._num_held_before = self._tables.index.num_held()
        self._num_swapped_before = self._tables.index.num_swapped

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Counts what the last event changed."""
        tables, num_unused = self._tables, len(self._cached_unused)
        self._update_cached_unused(tables.changed | cache_changes(event))
        _add(self._released, tables.released)
        if isinstance(event, Step):
            return
        self._num_unused_late += len(self._cached_unused) - num_unused
        _add(self._released_late, tables.released)
        if isinstance(event, RequestFinished):
            self._num_held_late += tables.index.num_held() - self._num_held_before
            self._num_swapped_late += tables.index.num_swapped - self._num_swapped_before
        yield from ()

    def end(self) -> Iterator[Finding]:
        """Checks the pools' figures as of the last step."""
        yield from self._pool_sum()
        if self._has_step:
            yield from self._blocks_of_tables()
            yield from self._host_leak()
            yield from self._cache_sum()

    @rule("pool-sum", "free, used and cached blocks do not add up to the pool")
    def _pool_sum(self) -> Iterator[Finding]:
        stats, info = self.state.stats, self.state.info
        if stats is None or info is None or has_impossible_pool(stats, info):
            return
        num_cached = stats.num_cached_blocks or 0  # the free blocks include what is not counted
        total = stats.num_free_blocks + stats.num_used_blocks + num_cached
        num_blocks = info.num_gpu_blocks - info.num_reserved_blocks
        if self._blocks.changes(total, num_blocks):
            yield self.of_engine(
                f"{stats.num_free_blocks} free, {stats.num_used_blocks} used and"
                f" {num_cached} cached blocks make {total},"
                f" the pool has {num_blocks}"
            )

    def _blocks_of_tables(self) -> Iterator[Finding]:
        """Compares the blocks in use with those in tables, of which some may be stale."""
        stats, info = self.state.stats, self.state.info
        num_tables = len(info.kv_cache_groups) if info is not None else 0
        if stats is not None and info is not None and num_tables > 1:
            num_held = self._tables.index.num_held(first=info.num_reserved_blocks)
            before, self._num_excess = self._num_excess, num_held - stats.num_used_blocks
            if self._num_excess != before:
                stale = stale_tables(self.state) if self._num_excess else []
                self._has_stale = bool(stale)
                yield from self._stale_tables(stale)
            if self._has_stale:
                return
        yield from self._leak()

    @rule(
        "stale-table",
        "a block table of a second KV-cache group names blocks that have been freed or given away",
    )
    def _stale_tables(self, stale: list[StaleTable]) -> Iterator[Finding]:
        info = self.state.info
        assert info is not None, "it has KV-cache groups"
        for table in stale:
            key = table.sequence.seq_id, table.group
            if key in self._stale:
                continue
            self._stale.add(key)
            named = ", ".join(map(str, table.blocks[:_MAX_NAMED]))
            more = f" and {more:,} more" if (more := len(table.blocks) - _MAX_NAMED) > 0 else ""
            kind = info.kv_cache_groups[table.group : table.group + 1]
            others = ""
            if table.holder is not None:
                block, holder = table.holder
                others = f"; block {block} is also in a table of {holder.request_id}"
            yield self.of_sequence(
                table.sequence,
                f"its table of KV-cache group {table.group}{f' ({kind[0]})' if kind else ''} still"
                f" names {plural(len(table.blocks), 'block')} that are not its own any more:"
                f" {named}{more}{others}",
                block=table.blocks[0],
            )

    @rule("block-leak", "blocks are in use that no block table names, or the reverse")
    def _leak(self) -> Iterator[Finding]:
        stats, info = self.state.stats, self.state.info
        if stats is None or info is None or "blocks_of_requests" in info.not_available:
            return
        if has_impossible_pool(stats, info):
            return
        num_held = self._tables.index.num_held(first=info.num_reserved_blocks)
        num_late = stats.num_late_blocks
        if self._used.changes(stats.num_used_blocks, num_held + num_late, late=self._num_held_late):
            released = self._describe_released(range(self._tables.index.num_device))
            late = f", {num_late} are to be freed after the steps in flight" if num_late else ""
            yield self.of_engine(
                f"{stats.num_used_blocks} blocks are in use, the block tables name"
                f" {num_held}{late}{released}"
            )

    @rule("host-leak", "host blocks are in use that hold no swapped sequence, or the reverse")
    def _host_leak(self) -> Iterator[Finding]:
        stats, info, index = self.state.stats, self.state.info, self._tables.index
        if stats is None or info is None:
            return
        if info.num_cpu_blocks is None or stats.num_free_cpu_blocks is None:
            return
        if index.num_swapped_tables < self.state.num_by_status[SequenceStatus.SWAPPED]:
            return  # the blocks of a sequence are unknown that was swapped out before the start
        num_used = info.num_cpu_blocks - stats.num_free_cpu_blocks
        if self._host.changes(num_used, index.num_swapped, late=self._num_swapped_late):
            released = self._describe_released(range(index.num_device, len(index)))
            yield self.of_engine(
                f"{num_used} host blocks are in use, swapped sequences have"
                f" {index.num_swapped}{released}"
            )

    @rule(
        "cache-sum",
        "the cached blocks are not those in the prefix cache that no table names,"
        " if the engine reports them",
    )
    def _cache_sum(self) -> Iterator[Finding]:
        stats = self.state.stats
        if stats is None or self.state.info is None or self.state.cached_blocks is None:
            return
        if stats.num_cached_blocks is None:
            return
        num_unused = len(self._cached_unused)
        if self._cached.changes(stats.num_cached_blocks, num_unused, late=self._num_unused_late):
            yield self.of_engine(
                f"{stats.num_cached_blocks} blocks are cached, the prefix cache has"
                f" {num_unused} that no block table names"
            )

    def _describe_released(self, pool: range) -> str:
        """Names the blocks of a pool that were released since the step before, by request."""
        parts: list[str] = []
        for request_id, blocks in islice(self._released.items(), _MAX_NAMED):
            own = [
                str(block - pool.start)
                for block in blocks
                if block in pool and not self._tables.index.owners(block)
            ]
            if own:
                more = f" and {len(own) - _MAX_NAMED} more" if len(own) > _MAX_NAMED else ""
                parts.append(f"by {request_id}: {', '.join(own[:_MAX_NAMED])}{more}")
        if len(self._released) > _MAX_NAMED:
            parts.append(f"by {len(self._released) - _MAX_NAMED} other requests")
        return f"; released since the step before {'; '.join(parts)}" if parts else ""

    def _update_cached_unused(self, blocks: Iterable[int]) -> None:
        cached = self.state.cached_blocks
        if cached is None:
            return
        for block in blocks:
            if block in cached and not self._tables.index.device_owners(block):
                self._cached_unused.add(block)
            else:
                self._cached_unused.discard(block)


def _add(blocks: dict[str, list[int]], more: dict[str, list[int]]) -> None:
    for request_id, released in more.items():
        blocks[request_id] = blocks.get(request_id, []) + released
