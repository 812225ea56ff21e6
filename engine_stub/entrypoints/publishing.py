"""Makes messages of the seqtop protocol from an engine's reports.

It runs in the publisher's process (`publisher_main.py`), and needs neither engine nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from engine_stub.entrypoints.reports import ArrivalReport, StateReport, StepReport
from engine_stub.step_record import BlockRemoved, BlockStored, PrefixQueried, merged
from seqtop.prefix_cache.prefix_history import PrefixHistory, PrefixLookup
from seqtop.prefix_cache.token_hashes import TokenHashes
from seqtop.sequence import (
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceGroupMetadataLike,
    SequenceStage,
)
from seqtop.wire.batch import scheduled_sequences
from seqtop.wire.messages import (
    CachedBlocks,
    PrefixMiss,
    RequestFinished,
    SequenceUpdate,
    Step,
)
from seqtop.wire.snapshot import Snapshot

if TYPE_CHECKING:
    from seqtop.whatif.replay import MessageSink


class _Tokens(msgspec.Struct):
    """The tokens of an unfinished sequence, as far as they are reported.

    Attributes:
        token_ids: Those of prompt and output.
        token_hashes: The hashes of its blocks by their tokens alone.
        num_computed_tokens: Tokens whose KV entries exist.
        cumulative_logprob: The sum of the log probabilities of the output.
    """

    request_id: str
    seq_id: int
    token_ids: list[int]
    token_hashes: TokenHashes = msgspec.field(default_factory=TokenHashes)
    num_computed_tokens: int = 0
    cumulative_logprob: float = 0.0

    def append(self, token_ids: list[int], logprobs: list[float]) -> None:
        """Appends sampled tokens."""
        self.token_ids += token_ids
        for logprob in logprobs:  # one by one, in the order in which the engine adds them
            self.cumulative_logprob += logprob


class ReportPublisher:
    """Publishes the messages of one engine's reports.

    Args:
        publisher: Receives the messages.
    """

    def __init__(self, publisher: MessageSink) -> None:
        self._publisher = publisher
        self._block_size = 0
        self._history = PrefixHistory()
        # The sequences of unfinished requests, by id, and their ids by request id.
        self._sequences: dict[int, _Tokens] = {}
        self._requests: dict[str, set[int]] = {}
        # Those of the columns of the last report.
        self._decodes: list[_Tokens] = []
        # Request id, sequence id and logical position of each block in the prefix cache.
        self._cached: dict[int, tuple[str, int, int]] = {}

    def publish(self, report: ArrivalReport | StepReport) -> None:
        """Publishes what is reported."""
        if isinstance(report, StepReport):
            self._stepped(report)
            return
        arrival, self._block_size = report.arrival, report.block_size
        self._requests[arrival.request_id] = set()
        for seq_id in arrival.seq_ids:
            self._add(arrival.request_id, seq_id, list(arrival.prompt_token_ids))
        self._publisher.publish(arrival)

    def restore(self, report: StateReport) -> Snapshot:
        """Continues with the whole state, as reports were lost; returns it for viewers."""
        snapshot = report.snapshot
        self._sequences, self._requests, self._decodes = {}, {}, []
        for request in snapshot.requests:
            request_id = request.arrival.request_id
            self._requests[request_id] = set()
            for sequence in request.sequences:
                update = sequence.update
                self._add(request_id, update.seq_id, list(request.arrival.prompt_token_ids))
                tokens = self._sequences[update.seq_id]
                tokens.append(list(sequence.output_token_ids), list(sequence.output_logprobs))
                tokens.num_computed_tokens = update.num_computed_tokens or 0
        before, self._cached = self._cached, {}
        for event in report.stored:
            own = self._sequences.get(event.seq_id)
            request_id = own.request_id if own else ""
            if before.get(event.block, ())[1:] == (event.seq_id, event.position):
                request_id = before[event.block][0]
            self._cached[event.block] = request_id, event.seq_id, event.position
        snapshot.cached_blocks = [
            CachedBlocks(request_id=request_id, seq_id=seq_id, position=position, blocks=[block])
            for block, (request_id, seq_id, position) in self._cached.items()
        ]
        self._history.forget(snapshot.step)
        return snapshot

    def _stepped(self, report: StepReport) -> None:
        for finished in report.ended_before:
            self._ended(finished)
        if report.seq_ids is not None:
            self._decodes = [self._sequences[seq_id] for seq_id in report.seq_ids]
        step = report.step
        assert step.execute is not None
        self._add_others(report, step)
        metadata, updates = self._plain_decodes(report)
        step.execute.seq_group_metadata_list = merged(
            step.execute.seq_group_metadata_list, report.other_groups, metadata
        )
        num_preempted = len(step.sequences) - len(report.other_positions)
        preempted, others = step.sequences[:num_preempted], step.sequences[num_preempted:]
        step.sequences = [*preempted, *merged(others, report.other_positions, updates)]
        self._find_prefix_misses(report, others)
        step.newly_cached_blocks = self._newly_cached(report)
        step.uncached_blocks = [
            event.block for event in report.cache_events if isinstance(event, BlockRemoved)
        ]
        self._publisher.publish(step)
        for update in others:
            if update.is_removed:
                self._sequences.pop(update.seq_id, None)
        for finished in report.ended:
            self._ended(finished)

    def _add_others(self, report: StepReport, step: Step) -> None:
        """Adds the tokens of the sequences that are no plain decodes."""
        for seq_id, token_ids in report.forks.items():
            parent = next(own for own in step.sequences if own.seq_id == seq_id)
            assert parent.request_id is not None
            self._add(parent.request_id, seq_id, token_ids)
        if not report.other_positions:
            return
        assert step.execute is not None
        batch = scheduled_sequences(step.execute)
        for update in step.sequences[-len(report.other_positions) :]:
            seq_id, tokens = update.seq_id, self._sequences[update.seq_id]
            if seq_id not in report.forks:
                tokens.append(update.new_token_ids, update.new_logprobs)
            if update.num_computed_tokens is not None:
                tokens.num_computed_tokens = update.num_computed_tokens
            elif seq_id in batch:
                tokens.num_computed_tokens = batch[seq_id].num_computed_tokens

    def _plain_decodes(
        self, report: StepReport
    ) -> tuple[list[SequenceGroupMetadataLike], list[SequenceUpdate]]:
        """Returns metadata and updates of the plain decodes, and adds their tokens."""
        metadata: list[SequenceGroupMetadataLike] = []
        updates: list[SequenceUpdate] = []
        appended, replaced = report.table_changes.appended, report.table_changes.replaced
        columns = (report.token_ids, report.logprobs, report.texts)
        for tokens, token_id, logprob, text in zip(self._decodes, *columns, strict=True):
            seq_id = tokens.seq_id
            delta = SequenceDataDelta(
                tokens.token_ids[-1:],
                tokens.cumulative_logprob,
                tokens.num_computed_tokens,
                SequenceStage.DECODE,
            )
            metadata.append(
                SequenceGroupMetadataDelta(
                    seq_data_delta={seq_id: delta},
                    request_id=tokens.request_id,
                    block_tables={},  # updates have them
                    is_prompt=False,
                    token_chunk_size=1,
                )
            )
            tokens.token_ids.append(token_id)
            tokens.cumulative_logprob += logprob
            tokens.num_computed_tokens += 1
            updates.append(
                SequenceUpdate(
                    seq_id=seq_id,
                    new_token_ids=[token_id],
                    text_delta=text,
                    new_blocks=appended.get(seq_id, []),
                    new_logprobs=[logprob],
                    block_table=replaced.get(seq_id),
                )
            )
        return metadata, updates

    def _find_prefix_misses(self, report: StepReport, others: list[SequenceUpdate]) -> None:
        """Adds the causes of the misses of each sequence that was admitted to its update."""
        history, sequences, step = self._history, self._sequences, report.step.step
        misses: dict[int, list[PrefixMiss]] = {}
        for event in report.cache_events:
            match event:
                case BlockStored(_, block_hash, seq_id, position):
                    stored = sequences[seq_id]
                    (token_hash,) = self._token_hashes(stored, position, [block_hash])
                    history.store(step, stored.request_id, block_hash, token_hash)
                case BlockRemoved(_, block_hash, seq_id):
                    got = sequences.get(seq_id)
                    history.evict(step, got.request_id if got else None, block_hash)
                case PrefixQueried(seq_ids):
                    queried = [sequences[seq_id] for seq_id in seq_ids]
                    lookups = self._lookups(event, queried)
                    causes = history.look_up(step, queried[0].request_id, lookups)
                    misses.update(zip(seq_ids, causes, strict=True))
        for update in others:
            update.prefix_misses = misses.get(update.seq_id)

    def _lookups(self, event: PrefixQueried, sequences: list[_Tokens]) -> list[PrefixLookup]:
        return [
            PrefixLookup(
                block_size=self._block_size,
                num_tokens=event.num_tokens,
                num_hit_tokens=event.num_hits * self._block_size,
                hashes=hashes,
                token_hashes=self._token_hashes(sequence, event.num_hits, hashes),
                is_cacheable=event.use_cache,
            )
            for hashes, sequence in zip(event.missed, sequences, strict=True)
        ]

    def _token_hashes(self, tokens: _Tokens, first: int, block_hashes: list[bytes]) -> list[bytes]:
        """Returns a token hash for each of `block_hashes`, those of the blocks from `first` on."""
        size = self._block_size
        return [*tokens.token_hashes.of_blocks(tokens.token_ids, size, first, block_hashes)]

    def _newly_cached(self, report: StepReport) -> list[CachedBlocks]:
        """Returns the blocks added to the prefix cache, as runs of neighbours in one table."""
        cached = self._cached
        runs: list[CachedBlocks] = []
        neighbour: tuple[int, int] | None = None
        for event in report.cache_events:
            if isinstance(event, BlockRemoved):
                cached.pop(event.block, None)
            if not isinstance(event, BlockStored):
                continue
            block, seq_id, position = event.block, event.seq_id, event.position
            request_id = self._sequences[seq_id].request_id
            cached[block] = request_id, seq_id, position
            if (seq_id, position) == neighbour:
                runs[-1].blocks.append(block)
            else:
                run = CachedBlocks(
                    request_id=request_id, seq_id=seq_id, position=position, blocks=[block]
                )
                runs.append(run)
            neighbour = seq_id, position + 1
        return runs

    def _add(self, request_id: str, seq_id: int, token_ids: list[int]) -> None:
        self._sequences[seq_id] = _Tokens(request_id, seq_id, token_ids)
        self._requests[request_id].add(seq_id)

    def _ended(self, finished: RequestFinished) -> None:
        for seq_id in self._requests.pop(finished.request_id):
            self._sequences.pop(seq_id, None)
        self._publisher.publish(finished)
