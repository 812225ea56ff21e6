"""Rules on the ownership of blocks, and on the pool's own figures."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from seqtop.checks.finding import Finding
from seqtop.checks.rules import LOADING, RuleGroup, rule
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.block_index import BlockIndex
from seqtop.state.model import SequenceState
from seqtop.text.format import plural
from seqtop.wire.batch import block_moves
from seqtop.wire.messages import Event, RequestFinished, Step

_BLOCK_RANGE = rule("block-range", "a block table names a block that the pool does not have")
_SWAP_MAP = rule("swap-map", "a swap names a block that no sequence holds there")


class BlockRules(RuleGroup):
    """Rules on block tables, the prefix cache and swaps."""

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._index = BlockIndex()
        self._index.rebuild(state)
        self._has_step = False
        """False before the first step: requests may have ended after the last one of `state`."""
        self._num_held_before = 0
        self._num_released = 0
        """Blocks released by the requests that finished after the last step."""
        self._cached_unused: set[int] = set()
        """Blocks in the prefix cache that no block table names."""
        self._admitted: list[int] = []
        """The sequences in the rows of the current step that waited before it."""
        self._num_unused_late = 0
        """The change of the number of `_cached_unused` since the last step."""
        self._update_cached_unused(state.cached_blocks or ())

    def before(self, event: Event) -> Iterator[Finding]:
        """Checks the pool as of the last step, and the swaps of the next one."""
        if isinstance(event, Step):
            # Requests finish after their step, so its figures are comparable only now.
            yield from self.end()
            yield from self._swaps_out(event)
            yield from self._swaps_in(event)
            yield from self._preempt_gains_nothing(event)
            self._admitted = [
                update.seq_id
                for update in event.sequences
                if (sequence := self.state.sequences.get(update.seq_id)) is not None
                and sequence.status is SequenceStatus.WAITING
            ]
            self._num_released = self._num_unused_late = 0
            self._has_step = True
        self._num_held_before = self._index.num_held()

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the tables of the sequences `touched`, and the changes of the prefix cache."""
        positions: dict[int, range] = {}
        cache_changes = _cache_changes(event)
        changed = set(cache_changes)
        for seq_id in touched:
            table_change = self._index.set_tables(seq_id, self.state.sequences.get(seq_id))
            positions[seq_id] = table_change.new_positions or positions.get(seq_id, range(0))
            changed |= table_change.blocks
        yield from self._cache_range(cache_changes)
        num_unused = len(self._cached_unused)
        self._update_cached_unused(changed)
        if not isinstance(event, Step):
            self._num_unused_late += len(self._cached_unused) - num_unused
        if isinstance(event, RequestFinished):
            self._num_released += self._num_held_before - self._index.num_held()
        # Only now: within a step, a block may pass from one sequence to another.
        for seq_id, new in positions.items():
            if sequence := self.state.sequences.get(seq_id):
                yield from self._table_range(sequence, new)
                yield from self._shared(sequence, new)
        if isinstance(event, Step):
            for seq_id in self._admitted:
                if sequence := self.state.sequences.get(seq_id):
                    yield from self._hit_before_computed(sequence)

    def end(self) -> Iterator[Finding]:
        """Checks the pool's figures as of the last step."""
        yield from self._pool_sum()
        if self._has_step:
            yield from self._leak()
            yield from self._cache_sum()

    @rule("pool-sum", "free, used and cached blocks do not add up to the pool")
    def _pool_sum(self) -> Iterator[Finding]:
        stats, info = self.state.stats, self.state.info
        if stats is None or info is None:
            return
        num_cached = stats.num_cached_blocks or 0  # the free blocks include what is not counted
        total = stats.num_free_blocks + stats.num_used_blocks + num_cached
        num_blocks = info.num_gpu_blocks - info.num_reserved_blocks
        if total != num_blocks:
            yield self.of_engine(
                f"{stats.num_free_blocks} free, {stats.num_used_blocks} used and"
                f" {num_cached} cached blocks make {total},"
                f" the pool has {num_blocks}"
            )

    @rule("block-leak", "blocks are in use that no block table names, or the reverse")
    def _leak(self) -> Iterator[Finding]:
        stats, info = self.state.stats, self.state.info
        if stats is None or info is None:
            return
        num_held = self._index.num_held(first=info.num_reserved_blocks)
        # A request aborted since the last step still counts in that step's figures.
        if stats.num_used_blocks not in (num_held, num_held + self._num_released):
            yield self.of_engine(
                f"{stats.num_used_blocks} blocks are in use, the block tables name {num_held}"
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
        if stats.num_cached_blocks not in (num_unused, num_unused - self._num_unused_late):
            yield self.of_engine(
                f"{stats.num_cached_blocks} blocks are cached, the prefix cache has"
                f" {num_unused} that no block table names"
            )

    @_BLOCK_RANGE
    def _cache_range(self, blocks: Iterable[int]) -> Iterator[Finding]:
        info, cached = self.state.info, self.state.cached_blocks
        if info is None or cached is None:
            return
        for block in blocks:
            if block in cached and not 0 <= block < info.num_gpu_blocks:
                yield self.of_engine(
                    f"block {block} is in the prefix cache; the pool's are 0 to"
                    f" {info.num_gpu_blocks - 1}",
                    block=block,
                )

    @_BLOCK_RANGE
    def _table_range(self, sequence: SequenceState, positions: range) -> Iterator[Finding]:
        info = self.state.info
        if info is None or info.block_size < 1:
            return
        for position in positions:
            block = sequence.block_table[position]
            if not 0 <= block < info.num_gpu_blocks:
                yield self.of_sequence(
                    sequence,
                    f"block {block} at position {position}; the pool's are 0 to"
                    f" {info.num_gpu_blocks - 1}",
                    block=block,
                )

    @rule("block-shared", "two sequences hold a block whose tokens they do not have in common")
    def _shared(self, sequence: SequenceState, positions: range) -> Iterator[Finding]:
        """Checks the blocks that are new to a table, and the block written last."""
        info = self.state.info
        if info is None or info.block_size < 1:
            return
        written = (sequence.num_computed_tokens - 1) // info.block_size
        is_old = 0 <= written < len(sequence.block_table) and written not in positions
        for position in chain([written] if is_old else (), positions):
            block = sequence.block_table[position]
            if block < info.num_reserved_blocks:
                continue
            for other_id, other_position in self._index.table_owners(block).items():
                other = self.state.sequences.get(other_id)
                if other is None or other_id == sequence.seq_id:
                    continue
                tokens, others = self._tokens(sequence), self._tokens(other)
                if tokens is None or others is None:
                    continue
                # Only computed tokens count. A fork holds the block for its parent's next token,
                # until one of them writes to it and gets a copy.
                computed = min(sequence.num_computed_tokens, other.num_computed_tokens)
                end = min((position + 1) * info.block_size, computed)
                if position == other_position and tokens[:end] == others[:end]:
                    continue
                yield self.of_sequence(
                    sequence,
                    f"block {block} is also position {other_position} of sequence {other_id},"
                    " whose tokens differ; only equal prefixes may share",
                    block=block,
                )

    @_SWAP_MAP
    def _swaps_out(self, step: Step) -> Iterator[Finding]:
        """Checks swaps against the blocks as they were before the step."""
        for device_block, _ in block_moves(step).swapped_out:
            if not self._index.table_owners(device_block):
                yield _swap_finding(step, "out", device_block, "device")

    @_SWAP_MAP
    def _swaps_in(self, step: Step) -> Iterator[Finding]:
        swapped_out = {host_block for _, host_block in block_moves(step).swapped_out}
        for host_block, _ in block_moves(step).swapped_in:
            if host_block not in swapped_out and not self._index.host_owners(host_block):
                yield _swap_finding(step, "in", host_block, "host")

    @rule(
        "preempt-gains-nothing",
        "a preemption frees no block, since others hold all blocks of the request",
        "warning",
    )
    def _preempt_gains_nothing(self, step: Step) -> Iterator[Finding]:
        """Checks preemptions against the tables as they were before the step."""
        info = self.state.info
        preempted = {preemption.request_id for preemption in step.preemptions}
        # Blocks that the requests preempted in one step share among themselves are freed.
        victims = {
            seq_id
            for request_id in preempted
            if (request := self.state.requests.get(request_id)) is not None
            for seq_id in request.seq_ids
        }
        for preemption in step.preemptions:
            request = self.state.requests.get(preemption.request_id)
            if request is None or info is None:
                continue
            blocks = {
                block
                for seq_id in request.seq_ids
                for block in self._index.blocks(seq_id)
                if block >= info.num_reserved_blocks
            }
            owners = {block: self._index.device_owners(block).keys() for block in blocks}
            if not blocks or any(seq_ids <= victims for seq_ids in owners.values()):
                continue
            others = {
                self.state.sequences[seq_id].request_id
                for seq_ids in owners.values()
                for seq_id in seq_ids - victims
                if seq_id in self.state.sequences
            }
            yield Finding(
                "",
                f"it held {plural(len(blocks), 'block')}, all of which others hold too:"
                f" {plural(len(others), 'request')}, such as {min(others, default='')}",
                step.step,
                preemption.request_id,
            )

    @rule("hit-before-computed", "a prefix hit is on a block whose tokens are not computed")
    def _hit_before_computed(self, sequence: SequenceState) -> Iterator[Finding]:
        """Checks the prefix hits of a sequence that the step just applied has admitted."""
        info = self.state.info
        if info is None or info.block_size < 1 or sequence.status is not SequenceStatus.RUNNING:
            return
        num_hits = sequence.num_cached_tokens // info.block_size
        for position, block in enumerate(sequence.block_table[: max(num_hits, 0)]):
            if block < info.num_reserved_blocks:
                continue
            others = [
                other
                for seq_id, place in self._index.table_owners(block).items()
                if seq_id != sequence.seq_id
                and place == position
                and (other := self.state.sequences.get(seq_id)) is not None
                # Its own hits are in its table, and in old versions not in its computed tokens.
                and other.engine_status != LOADING
            ]
            end = (position + 1) * info.block_size
            # A writer in the same batch is in time: it writes before the attention reads.
            if others and all(sequence.num_computed_tokens < end for sequence in others):
                writer = others[0]
                yield self.of_sequence(
                    sequence,
                    f"its block {block} at position {position} is a prefix hit, but sequence"
                    f" {writer.seq_id} has computed {writer.num_computed_tokens} of the {end}"
                    " tokens up to its end",
                    block=block,
                )
                return

    def _update_cached_unused(self, blocks: Iterable[int]) -> None:
        cached = self.state.cached_blocks
        if cached is None:
            return
        for block in blocks:
            if block in cached and not self._index.device_owners(block):
                self._cached_unused.add(block)
            else:
                self._cached_unused.discard(block)

    def _tokens(self, sequence: SequenceState) -> list[int] | None:
        """Returns prompt and output; `None` where the stream is redacted."""
        prompt = self.state.requests[sequence.request_id].prompt_token_ids
        if len(prompt) != sequence.num_prompt_tokens:
            return None
        return [*prompt, *sequence.output_token_ids]


def _swap_finding(step: Step, direction: str, block: int, where: str) -> Finding:
    message = f"swap {direction} of {where} block {block}, which no sequence holds there"
    return Finding("", message, step.step, block=block)


def _cache_changes(event: Event) -> set[int]:
    """Returns the blocks that a step adds to the prefix cache or removes from it."""
    if not isinstance(event, Step) or event.newly_cached_blocks is None:
        return set()
    return {*event.uncached_blocks, *(b for run in event.newly_cached_blocks for b in run.blocks)}
