"""Rules on the ownership of blocks, and on swaps."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from seqtop.checks.block_tables import BlockTables, cache_changes, extra_keys_of, num_equal_tokens
from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.state import EngineState
from seqtop.state.model import SequenceState
from seqtop.text.format import plural
from seqtop.wire.batch import block_moves
from seqtop.wire.messages import Event, Step

_BLOCK_RANGE = rule("block-range", "a block table names a block that the pool does not have")
_SWAP_MAP = rule("swap-map", "a swap names a block that no sequence holds there")


class BlockRules(RuleGroup):
    """Rules on block tables and swaps.

    Args:
        state: The state of the engine.
        tables: Its block tables.
    """

    def __init__(self, state: EngineState, tables: BlockTables) -> None:
        super().__init__(state)
        self._tables = tables
        self._index = tables.index

    def before(self, event: Event) -> Iterator[Finding]:
        """Checks swaps and preemptions against the tables before a step."""
        if isinstance(event, Step):
            yield from self._swaps_out(event)
            yield from self._swaps_in(event)
            yield from self._preempt_gains_nothing(event)

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the tables of the sequences `touched`, and the changes of the prefix cache."""
        yield from self._cache_range(cache_changes(event))
        # Within a step, a block may pass from one sequence to another.
        for seq_id, new in self._tables.new_positions.items():
            if sequence := self.state.sequences.get(seq_id):
                # Making a generator costs more than testing its condition.
                if new:
                    yield from self._table_range(sequence, new)
                if new or self._shares_written(sequence):
                    yield from self._shared(sequence, new)

    def _shares_written(self, sequence: SequenceState) -> bool:
        """Returns whether the block written last may be in the tables of others, too."""
        table, info = sequence.block_table, self.state.info
        if info is None or info.block_size < 1:
            return False
        written = (sequence.num_computed_tokens - 1) // info.block_size
        return 0 <= written < len(table) and len(self._index.table_owners(table[written])) > 1

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

    @rule(
        "block-shared",
        "two sequences hold a block although their tokens, LoRA adapters or cache salts differ",
    )
    def _shared(self, sequence: SequenceState, positions: range) -> Iterator[Finding]:
        """Checks the blocks that are new to a table, and the block written last."""
        info = self.state.info
        if info is None or info.block_size < 1:
            return
        written = (sequence.num_computed_tokens - 1) // info.block_size
        is_old = 0 <= written < len(sequence.block_table) and written not in positions
        extra_keys, different = extra_keys_of(self.state, sequence), set[int]()
        num_equal: dict[int, int | None] = {}
        """By sequence, the leading tokens that are the same in both."""
        for position in chain([written] if is_old else (), positions):
            block = sequence.block_table[position]
            if block < info.num_reserved_blocks:
                continue
            for other_id, other_position in self._index.table_owners(block).items():
                other = self.state.sequences.get(other_id)
                if other is None or other_id == sequence.seq_id or other_id in different:
                    continue
                if (others := extra_keys_of(self.state, other)) != extra_keys:
                    different.add(other_id)
                    yield self.of_sequence(
                        sequence,
                        f"block {block} is also in the table of sequence {other_id}, which has"
                        f" {_describe(*others)}; this one has {_describe(*extra_keys)}",
                        block=block,
                    )
                    continue
                # Only computed tokens count. A fork holds the block for its parent's next token,
                # until one of them writes to it and gets a copy.
                computed = min(sequence.num_computed_tokens, other.num_computed_tokens)
                if other_id not in num_equal:
                    num_equal[other_id] = num_equal_tokens(self.state, sequence, other, computed)
                num, end = num_equal[other_id], min((position + 1) * info.block_size, computed)
                if num is None or (position == other_position and num >= end):
                    continue
                different.add(other_id)
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


def _describe(lora: str, salt: str) -> str:
    adapter = f"the LoRA adapter {lora}" if lora else "no LoRA adapter"
    return f"{adapter} and {f'the cache salt {salt}' if salt else 'no cache salt'}"


def _swap_finding(step: Step, direction: str, block: int, where: str) -> Finding:
    message = f"swap {direction} of {where} block {block}, which no sequence holds there"
    return Finding("", message, step.step, block=block)
