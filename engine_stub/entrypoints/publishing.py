"""Converts the engine's step records to messages of the seqtop protocol.

Only this module depends on both.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine_stub.config import DEFAULT_MODEL, SCHEDULER_SETTINGS, EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.model_executor.hub import model_name
from engine_stub.step_record import (
    BlockRemoved,
    BlockStored,
    PreemptionRecord,
    PrefixQueried,
    SequenceRecord,
    StepRecord,
    TableChanges,
)
from seqtop import __version__
from seqtop.prefix_cache.prefix_history import PrefixHistory, PrefixLookup
from seqtop.prefix_cache.token_hashes import TokenHashes
from seqtop.sequence import (
    RequestMetrics,
    SampleLogprobs,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from seqtop.sequence.parallel import parent_request_id
from seqtop.wire import messages
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.batch import ScheduledSequence, scheduled_sequences, without_tables
from seqtop.wire.messages import (
    CachedBlocks,
    EngineInfo,
    PrefixMiss,
    RequestArrived,
    RequestFinished,
)
from seqtop.wire.snapshot import RequestSnapshot, SequenceSnapshot, Snapshot

if TYPE_CHECKING:
    from seqtop.whatif.replay import MessageSink


def engine_info(
    engine: LLMEngine, *, engine_id: str, control: bool, redacted: bool = False
) -> EngineInfo:
    """Returns the description of a newly started engine, for its viewers."""
    config: EngineConfig = engine.config
    assert config.num_gpu_blocks is not None
    assert config.max_model_len is not None
    return EngineInfo(
        engine_id=engine_id,
        incarnation=uuid.uuid4().hex,
        engine=f"engine_stub {__version__}",
        model=_model_name(config.model),
        dtype=str(config.dtype).removeprefix("torch."),
        device=str(config.device),
        start_time=engine.clock(),
        block_size=config.block_size,
        num_gpu_blocks=config.num_gpu_blocks,
        num_cpu_blocks=config.num_cpu_blocks or None,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        enable_chunked_prefill=config.enable_chunked_prefill,
        enable_prefix_caching=config.enable_prefix_caching,
        preemption_mode=config.preemption_mode,
        control=control,
        redacted=redacted,
        scheduler_settings={name: getattr(config, name) for name in SCHEDULER_SETTINGS},
    )


def _model_name(path: Path) -> str:
    return "bundled stories" if path == DEFAULT_MODEL else model_name(path)


class _Published(NamedTuple):
    """A sequence of an unfinished group, and the hashes of its blocks by their tokens alone."""

    request_id: str
    seq: Sequence
    token_hashes: TokenHashes

    def hash_tokens(self, first: int, block_hashes: list[bytes]) -> list[bytes]:
        """Returns a token hash for each of `block_hashes`, those of the blocks from `first` on."""
        seq = self.seq
        return [
            *self.token_hashes.of_blocks(seq.get_token_ids(), seq.block_size, first, block_hashes)
        ]


class StepPublisher:
    """Publishes the requests and steps of one engine.

    Args:
        publisher: Receives the messages.
    """

    def __init__(self, publisher: MessageSink) -> None:
        self._publisher = publisher
        self._history = PrefixHistory()
        # Unfinished groups by request id.
        self._groups: dict[str, SequenceGroup] = {}
        # Their sequences by id.
        self._sequences: dict[int, _Published] = {}
        # Request id, sequence id and logical position of each block in the prefix cache.
        self._cached: dict[int, tuple[str, int, int]] = {}
        self._num_preemptions = 0
        self._step = -1
        self._last_stats: messages.StepStats | None = None

    def arrived(self, group: SequenceGroup) -> None:
        """Publishes that a group has joined the waiting queue."""
        self._groups[group.request_id] = group
        for seq in group.seqs:
            self._add(group.request_id, seq)
        self._publisher.publish(_arrival(group))

    def snapshot(self, time: float, table_of: Callable[[Sequence], list[int]]) -> Snapshot:
        """Returns all unfinished requests and sequences. Called between two steps.

        Args:
            time: The current time in seconds since the epoch.
            table_of: Returns the block table of a sequence: `BlockManager.get_block_table`.
        """
        return Snapshot(
            time=time,
            step=self._step,
            stats=self._last_stats,
            requests=[
                RequestSnapshot(
                    arrival=_arrival(group),
                    sequences=[_sequence_snapshot(group, seq, table_of(seq)) for seq in group.seqs],
                )
                for group in self._groups.values()
            ],
            cached_blocks=[
                CachedBlocks(
                    request_id=request_id, seq_id=seq_id, position=position, blocks=[block]
                )
                for block, (request_id, seq_id, position) in self._cached.items()
            ],
        )

    def stepped(self, record: StepRecord, paced_time: float = 0.0) -> None:
        """Publishes a step and the requests that it finished.

        Args:
            record: The step.
            paced_time: Seconds before it in which the engine waited on purpose.
        """
        # These ended before the step, which may have given their blocks to other requests.
        for group in (*record.ignored, *record.aborted):
            self._ended(group, group.metrics.finished_time or record.start_time)
        self._num_preemptions += len(record.preemptions)
        self._step = record.step
        self._last_stats = _stats(record, self._num_preemptions)
        self._last_stats.paced_time = paced_time
        for update in record.updates:
            if update.parent_seq_id is not None:
                self._add(update.request_id, update.seq)
        misses, batch = self._prefix_misses(record), scheduled_sequences(record.execute_model_req)
        preempted = (
            update for preemption in record.preemptions for update in self._preempted(preemption)
        )
        self._publisher.publish(
            messages.Step(
                step=record.step,
                start_time=record.start_time,
                time=record.time,
                execute=without_tables(record.execute_model_req),  # updates have them
                sequences=[
                    *preempted,
                    *(
                        self._update(
                            update,
                            record.table_changes,
                            batch.get(update.seq.seq_id),
                            misses.get(update.seq.seq_id),
                        )
                        for update in record.updates
                    ),
                ],
                stats=self._last_stats,
                metrics=_changed_metrics(record),
                preemptions=[_preemption(preemption) for preemption in record.preemptions],
                wait_reasons=_wait_reasons(record),
                newly_cached_blocks=self._newly_cached(record),
                uncached_blocks=[
                    event.block for event in record.cache_events if isinstance(event, BlockRemoved)
                ],
            )
        )
        for update in record.updates:
            if update.is_removed:
                self._sequences.pop(update.seq.seq_id, None)
        for group in record.finished:
            self._ended(group, record.time)

    def _prefix_misses(self, record: StepRecord) -> dict[int, list[PrefixMiss]]:
        """Returns the causes of the misses of each sequence that was admitted, by its id."""
        history, sequences = self._history, self._sequences
        misses: dict[int, list[PrefixMiss]] = {}
        for event in record.cache_events:
            match event:
                case BlockStored(_, block_hash, seq_id, position):
                    stored = sequences[seq_id]
                    (token_hash,) = stored.hash_tokens(position, [block_hash])
                    history.store(record.step, stored.request_id, block_hash, token_hash)
                case BlockRemoved(_, block_hash, seq_id):
                    got = sequences.get(seq_id)
                    history.evict(record.step, got.request_id if got else None, block_hash)
                case PrefixQueried(seq_ids):
                    queried = [sequences[seq_id] for seq_id in seq_ids]
                    lookups = _lookups(event, queried)
                    causes = history.look_up(record.step, queried[0].request_id, lookups)
                    misses.update(zip(seq_ids, causes, strict=True))
        return misses

    def _add(self, request_id: str, seq: Sequence) -> None:
        self._sequences[seq.seq_id] = _Published(request_id, seq, TokenHashes())

    def _newly_cached(self, record: StepRecord) -> list[CachedBlocks]:
        """Returns the blocks added to the prefix cache, as runs of neighbours in one table."""
        cached = self._cached
        runs: list[CachedBlocks] = []
        neighbour = None
        for event in record.cache_events:
            if isinstance(event, BlockRemoved):
                cached.pop(event.block, None)
            if not isinstance(event, BlockStored):
                continue
            block, _, seq_id, position = event
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

    def _update(
        self,
        update: SequenceRecord,
        changes: TableChanges,
        in_batch: ScheduledSequence | None,
        prefix_misses: list[PrefixMiss] | None,
    ) -> messages.SequenceUpdate:
        """Returns what changed of a sequence beside what its batch says."""
        seq = update.seq
        published = messages.SequenceUpdate(
            seq_id=seq.seq_id,
            new_token_ids=update.new_token_ids,
            text_delta=update.text_delta,
            new_logprobs=_sampled_logprobs(update.new_token_ids, update.new_logprobs),
            stop_reason=seq.stop_reason,
            num_draft_tokens=update.num_draft_tokens,
            num_accepted_tokens=update.num_accepted_tokens,
            is_removed=update.is_removed,
            prefix_misses=prefix_misses,
        )
        if seq.is_finished():
            published.block_table = []
        elif in_batch is None or not in_batch.is_full:  # else the metadata has the tables
            published.new_blocks = changes.appended.get(seq.seq_id, [])
            published.block_table = changes.replaced.get(seq.seq_id)
        num_computed = seq.get_num_computed_tokens()
        # The batch says that a sequence runs, and by how much it advances.
        if in_batch is None or seq.status is not SequenceStatus.RUNNING:
            published.status = seq.status
        if in_batch is None:
            published.num_cached_tokens = seq.data.get_num_cached_tokens()
        if in_batch is None or num_computed != in_batch.num_computed_tokens:
            published.num_computed_tokens = num_computed
        if _wants_candidates(self._groups[update.request_id]):
            published.top_logprobs = update.new_logprobs
        if update.parent_seq_id is not None:
            published.parent_seq_id, published.request_id = update.parent_seq_id, update.request_id
        return published

    def _preempted(self, preemption: PreemptionRecord) -> Iterator[messages.SequenceUpdate]:
        group = self._groups[preemption.request_id]
        for seq_id in preemption.seq_ids:
            seq = group.seqs_dict[seq_id]
            yield messages.SequenceUpdate(
                seq_id=seq_id,
                status=seq.status,
                num_computed_tokens=seq.get_num_computed_tokens(),
                num_cached_tokens=seq.data.get_num_cached_tokens(),
                block_table=[],
            )

    def _ended(self, group: SequenceGroup, time: float) -> None:
        if self._groups.pop(group.request_id, None) is None:
            return  # a sample of a request that was refused, whose arrival was not published
        for seq in group.seqs:
            self._sequences.pop(seq.seq_id, None)
        self._publisher.publish(
            RequestFinished(
                request_id=group.request_id,
                time=time,
                status=group.first_seq.status,
                metrics=group.metrics,
                text_lengths=[len(seq.output_text) for seq in group.seqs],
                seq_ids=[seq.seq_id for seq in group.seqs],
            )
        )


def _lookups(event: PrefixQueried, sequences: list[_Published]) -> list[PrefixLookup]:
    block_size = sequences[0].seq.block_size
    return [
        PrefixLookup(
            block_size=block_size,
            num_tokens=event.num_tokens,
            num_hit_tokens=event.num_hits * block_size,
            hashes=hashes,
            token_hashes=sequence.hash_tokens(event.num_hits, hashes),
            is_cacheable=event.use_cache,
        )
        for hashes, sequence in zip(event.missed, sequences, strict=True)
    ]


def _sequence_snapshot(group: SequenceGroup, seq: Sequence, table: list[int]) -> SequenceSnapshot:
    token_ids = list(seq.get_output_token_ids())
    params = group.sampling_params
    # The deltas that follow begin with the text that is withheld now.
    num_withheld = params.output_text_buffer_length if params else 0
    return SequenceSnapshot(
        update=messages.SequenceUpdate(
            seq_id=seq.seq_id,
            status=seq.status,
            num_computed_tokens=seq.get_num_computed_tokens(),
            num_cached_tokens=seq.data.get_num_cached_tokens(),
            block_table=table,
            stop_reason=seq.stop_reason,
        ),
        output_token_ids=Ints.of(token_ids),
        output_logprobs=Floats.of(_sampled_logprobs(token_ids, seq.output_logprobs)),
        text=seq.get_output_text_to_return(num_withheld, delta=False),
        top_logprobs=dict(enumerate(seq.output_logprobs)) if _wants_candidates(group) else {},
    )


def _stats(record: StepRecord, num_preemptions: int) -> messages.StepStats:
    return messages.StepStats(
        num_running=record.num_running,
        num_waiting=record.num_waiting,
        num_used_blocks=record.blocks.used,
        num_free_blocks=record.blocks.free,
        num_cached_blocks=record.blocks.cached,
        num_prefill_tokens=record.num_prefill_tokens,
        num_decode_tokens=record.num_decode_tokens,
        prefix_cache_queries=record.blocks.prefix_queries,
        prefix_cache_hits=record.blocks.prefix_hits,
        num_preemptions=num_preemptions,
        scheduler_time=record.scheduler_time,
        model_forward_time=record.model_forward_time,
        model_execute_time=record.model_execute_time,
        num_swapped=record.num_swapped if record.blocks.total_cpu else None,
        num_free_cpu_blocks=record.blocks.free_cpu if record.blocks.total_cpu else None,
    )


def _arrival(group: SequenceGroup) -> RequestArrived:
    return RequestArrived(
        request_id=group.request_id,
        arrival_time=group.arrival_time,
        seq_ids=[seq.seq_id for seq in group.seqs],
        num_prompt_tokens=group.first_seq.get_prompt_len(),
        prompt=group.prompt,
        prompt_token_ids=Ints.of(group.prompt_token_ids),
        sampling_params=group.sampling_params,
        pooling_params=group.pooling_params,
        priority=group.priority,
        metrics=group.metrics,
        parent_request_id=parent_request_id(group.request_id),
    )


def _wants_candidates(group: SequenceGroup) -> bool:
    params = group.sampling_params
    return params is not None and params.logprobs is not None


def _sampled_logprobs(token_ids: list[int], candidates: SampleLogprobs) -> list[float]:
    return [top[token_id].logprob for token_id, top in zip(token_ids, candidates, strict=True)]


def _preemption(preemption: PreemptionRecord) -> messages.Preemption:
    return messages.Preemption(
        request_id=preemption.request_id,
        mode=preemption.mode,
        num_lost_tokens=preemption.num_lost_tokens,
        for_request_id=preemption.for_request_id,
    )


def _changed_metrics(record: StepRecord) -> dict[str, RequestMetrics]:
    """Returns the metrics that changed by more than what viewers derive from `StepStats`."""
    groups = [scheduled.seq_group for scheduled in record.scheduled]
    return {
        group.request_id: group.metrics
        for group in groups
        if record.start_time == group.metrics.first_scheduled_time
        or record.time == group.metrics.first_token_time
        or len(group.metrics.spec_token_acceptance_counts or ()) > 1
    }


def _wait_reasons(record: StepRecord) -> list[messages.WaitReason]:
    wait = record.admission_blocked
    if wait is None:
        return []
    return [
        messages.WaitReason(
            request_id=wait.request_id, cause=wait.cause, num_missing=wait.num_missing
        )
    ]
