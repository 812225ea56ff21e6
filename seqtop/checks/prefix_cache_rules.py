"""Rules on the content of the prefix cache, and on prefix hits."""

from collections.abc import Iterator, Sequence

from seqtop.checks.block_tables import BlockTables, cache_changes, extra_keys_of, tokens_of
from seqtop.checks.finding import Finding
from seqtop.checks.rules import LOADING, RuleGroup, rule
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import SequenceState
from seqtop.wire.messages import CachedBlocks, Event, Step


class PrefixCacheRules(RuleGroup):
    """Rules on the sequences that a step admits, and on the blocks that it adds to the cache.

    Args:
        state: The state of the engine.
        tables: Its block tables.
    """

    def __init__(self, state: EngineState, tables: BlockTables) -> None:
        super().__init__(state)
        self._index = tables.index
        self._computed_before: set[int] = set()
        """Blocks that the current step added to the cache, and that were computed before it."""
        self._admitted: list[int] = []
        """The sequences in the rows of the current step that waited before it."""

    def before(self, event: Event) -> Iterator[Finding]:
        """Records the sequences that a step admits, and the blocks that it may add before that."""
        if isinstance(event, Step):
            self._computed_before = {
                block for run in event.newly_cached_blocks or () for block in self._computed(run)
            }
            self._admitted = [
                update.seq_id
                for update in event.sequences
                if (sequence := self.state.sequences.get(update.seq_id)) is not None
                and sequence.status is SequenceStatus.WAITING
            ]
        yield from ()

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the prefix hits of a step, and the blocks that it adds to the prefix cache."""
        info = self.state.info
        if not isinstance(event, Step) or info is None or info.block_size < 1:
            return
        changes = cache_changes(event) - self._computed_before
        in_batch = {member.seq_id for member in self.members} if self._admitted else set()
        # One that is in no batch yet was admitted while this one was computed, before it.
        ahead = changes - {
            block for run in event.newly_cached_blocks or () for block in self._computed(run)
        }
        for seq_id in self._admitted:
            sequence = self.state.sequences.get(seq_id)
            if sequence is None or sequence.status is not SequenceStatus.RUNNING:
                continue
            num_found = sequence.num_cached_tokens - sequence.num_external_tokens
            hits = sequence.block_table[: max(num_found // info.block_size, 0)]
            yield from self._hit_before_computed(sequence, hits)
            too_late = changes if seq_id in in_batch else ahead
            yield from self._hit_not_cached(sequence, hits, too_late)
        for run in event.newly_cached_blocks or ():
            yield from self._cached_before_computed(run)

    @rule("hit-before-computed", "a prefix hit is on a block whose tokens are not computed")
    def _hit_before_computed(self, sequence: SequenceState, hits: list[int]) -> Iterator[Finding]:
        info = self.state.info
        assert info is not None
        for position, block in enumerate(hits):
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

    @rule(
        "hit-not-cached",
        "a prefix hit is on a block that the prefix cache does not have, or has for others",
    )
    def _hit_not_cached(
        self, sequence: SequenceState, hits: list[int], too_late: set[int]
    ) -> Iterator[Finding]:
        """Checks hits where the engine reports the content of its prefix cache.

        Args:
            sequence: A sequence that the step just applied has admitted.
            hits: The blocks of its prefix hits, in logical order.
            too_late: The blocks that the step added to the cache or removed from it. A block that
                is hit is in use, so that it is none of them, except one that was computed before:
                the scheduler may add it, and then admit the sequence.
        """
        cached = self.state.cached_blocks
        for position, block in enumerate(hits if cached is not None else ()):
            entry = cached.get(block) if cached is not None else None
            hit = f"its block {block} at position {position} is counted as a prefix hit"
            if entry is None or block in too_late:
                yield self.of_sequence(
                    sequence, f"{hit}, but was not in the prefix cache", block=block
                )
                return
            writer = self.state.sequences.get(entry.seq_id)
            if writer is None or writer.request_id != entry.request_id:
                continue  # it ended long ago
            if self._index.table_owners(block).get(writer.seq_id) == position:
                continue  # then `block-shared` compares the two
            if entry.position != position or self._differ(sequence, writer, position):
                yield self.of_sequence(
                    sequence,
                    f"{hit}, but holds position {entry.position} of sequence {writer.seq_id}, whose"
                    " tokens, LoRA adapter or cache salt differ",
                    block=block,
                )
                return

    def _computed(self, run: CachedBlocks) -> Sequence[int]:
        """Returns the blocks of a run that its sequence has computed."""
        info, sequence = self.state.info, self.state.sequences.get(run.seq_id)
        if info is None or info.block_size < 1 or sequence is None:
            return ()
        return run.blocks[: max(sequence.num_computed_tokens // info.block_size - run.position, 0)]

    def _differ(self, sequence: SequenceState, writer: SequenceState, position: int) -> bool:
        """Returns whether the contents of two sequences' blocks at a position have to differ.

        Differences at positions before it are found there.
        """
        info = self.state.info
        assert info is not None
        if extra_keys_of(self.state, sequence) != extra_keys_of(self.state, writer):
            return True
        start, end = position * info.block_size, (position + 1) * info.block_size
        tokens = tokens_of(self.state, sequence, start, end)
        written = tokens_of(self.state, writer, start, end)
        return tokens is not None and written is not None and tokens != written

    @rule("cached-before-computed", "a block is in the prefix cache before its tokens are computed")
    def _cached_before_computed(self, run: CachedBlocks) -> Iterator[Finding]:
        info, sequence = self.state.info, self.state.sequences.get(run.seq_id)
        assert info is not None
        if sequence is None or sequence.status is SequenceStatus.WAITING:
            return  # it has just been preempted
        end = (run.position + len(run.blocks)) * info.block_size
        if sequence.num_computed_tokens < end:
            yield self.of_sequence(
                sequence,
                f"block {run.blocks[-1]} at position {run.position + len(run.blocks) - 1} is in the"
                f" prefix cache, but {sequence.num_computed_tokens} of the {end} tokens up to its"
                " end are computed",
                block=run.blocks[-1],
            )
