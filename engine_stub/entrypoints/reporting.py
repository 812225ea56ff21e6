"""Reports an engine's requests and steps, at the least cost to the engine's thread.

`publishing.py` makes messages of the reports, in another process.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine_stub.config import DEFAULT_MODEL, SCHEDULER_SETTINGS, EngineConfig
from engine_stub.entrypoints.publishing import ReportPublisher
from engine_stub.entrypoints.reports import ArrivalReport, StateReport, StepReport
from engine_stub.model_executor.hub import model_name
from engine_stub.step_record import (
    PreemptionRecord,
    SequenceRecord,
    StepRecord,
    TableChanges,
    merged,
)
from seqtop import __version__
from seqtop.sequence import SampleLogprobs, Sequence, SequenceGroup, SequenceStatus
from seqtop.sequence.parallel import parent_request_id
from seqtop.wire import messages
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.batch import ScheduledSequence, scheduled_sequences, without_tables
from seqtop.wire.messages import EngineInfo, RequestArrived, RequestFinished
from seqtop.wire.snapshot import RequestSnapshot, SequenceSnapshot, Snapshot

if TYPE_CHECKING:
    # Not at run time: the engine brings tokenizers, and is slow to import.
    from engine_stub.engine import LLMEngine
    from seqtop.whatif.replay import MessageSink


def engine_info(
    engine: LLMEngine, *, engine_id: str, control: bool, redacted: bool = False
) -> EngineInfo:
    """Returns the description of a newly started engine, for its viewers."""
    config: EngineConfig = engine.config
    assert config.num_gpu_blocks is not None
    assert config.max_model_len is not None
    settings = {name: getattr(config, name) for name in SCHEDULER_SETTINGS}
    if config.scheduling_policy is not None:
        settings["scheduling_policy"] = Path(config.scheduling_policy).stem
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
        scheduler_settings=settings,
        bytes_per_block=engine.bytes_per_block,
    )


def _model_name(path: Path) -> str:
    return "bundled stories" if path == DEFAULT_MODEL else model_name(path)


class StepReporter:
    """Reports the requests and steps of one engine. To be used on the engine's thread.

    Args:
        send: Takes each report. It may change the report, but not what the engine goes on using.
    """

    def __init__(self, send: Callable[[ArrivalReport | StepReport], None]) -> None:
        self._send = send
        # Unfinished groups by request id, in order of arrival.
        self._groups: dict[str, SequenceGroup] = {}
        self._seq_ids: list[int] = []
        self._num_preemptions = 0
        self._step = -1
        self._last_stats: messages.StepStats | None = None

    def arrived(self, group: SequenceGroup) -> None:
        """Reports that a group has joined the waiting queue."""
        self._groups[group.request_id] = group
        self._send(ArrivalReport(_arrival(group), group.first_seq.block_size))

    def stepped(self, record: StepRecord, paced_time: float = 0.0) -> None:
        """Reports a step and the requests that it finished.

        Args:
            record: The step.
            paced_time: Seconds before it in which the engine waited on purpose.
        """
        # These ended before the step, which may have given their blocks to other requests.
        ended_before = [
            self._ended(group, group.metrics.finished_time or record.start_time)
            for group in (*record.ignored, *record.aborted)
            if group.request_id in self._groups
        ]
        self._num_preemptions += len(record.preemptions)
        self._step = record.step
        self._last_stats = stats = _stats(record, self._num_preemptions)
        stats.paced_time = paced_time
        decodes = record.decodes
        has_new_ids = decodes.seq_ids != self._seq_ids
        self._seq_ids = decodes.seq_ids
        self._send(
            StepReport(
                step=self._message(record, stats),
                other_groups=record.other_groups,
                other_positions=record.other_positions,
                seq_ids=decodes.seq_ids if has_new_ids else None,
                token_ids=decodes.token_ids,
                logprobs=decodes.logprobs,
                texts=decodes.texts,
                table_changes=record.table_changes,
                forks={
                    update.seq.seq_id: update.seq.get_token_ids().copy()
                    for update in record.others
                    if update.parent_seq_id is not None
                },
                cache_events=record.cache_events,
                ended_before=ended_before,
                ended=[
                    self._ended(group, record.time)
                    for group in record.finished
                    if group.request_id in self._groups
                ],
            )
        )

    def state(self, engine: LLMEngine) -> StateReport:
        """Returns the whole state of the engine. Called between two steps."""
        snapshot = self._snapshot(engine.clock(), engine.block_manager.get_block_table)
        self._seq_ids = []
        return StateReport(snapshot, engine.block_manager.stored_blocks())

    def _snapshot(self, time: float, table_of: Callable[[Sequence], list[int]]) -> Snapshot:
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
        )

    def _message(self, record: StepRecord, stats: messages.StepStats) -> messages.Step:
        """Returns the message of a step without its plain decodes."""
        request = record.execute_model_req
        sent = request.seq_group_metadata_list
        request = msgspec.structs.replace(
            request, seq_group_metadata_list=[sent[index] for index in record.other_groups]
        )
        sequences: list[messages.SequenceUpdate] = []
        for preemption in record.preemptions:
            sequences += self._preempted(preemption)
        if record.others:
            batch = scheduled_sequences(request)
            sequences += [
                self._update(update, record.table_changes, batch.get(update.seq.seq_id))
                for update in record.others
            ]
            request = without_tables(request)  # updates have them
        return messages.Step(
            step=record.step,
            start_time=record.start_time,
            time=record.time,
            execute=request,
            sequences=sequences,
            stats=stats,
            metrics={group.request_id: group.metrics for group in record.changed_metrics},
            preemptions=[_preemption(preemption) for preemption in record.preemptions],
            wait_reasons=_wait_reasons(record),
        )

    def _update(
        self,
        update: SequenceRecord,
        changes: TableChanges,
        in_batch: ScheduledSequence | None,
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

    def _preempted(self, preemption: PreemptionRecord) -> list[messages.SequenceUpdate]:
        group = self._groups[preemption.request_id]
        seqs = [group.seqs_dict[seq_id] for seq_id in preemption.seq_ids]
        return [
            messages.SequenceUpdate(
                seq_id=seq.seq_id,
                status=seq.status,
                num_computed_tokens=seq.get_num_computed_tokens(),
                num_cached_tokens=seq.data.get_num_cached_tokens(),
                block_table=[],
            )
            for seq in seqs
        ]

    def _ended(self, group: SequenceGroup, time: float) -> RequestFinished:
        del self._groups[group.request_id]
        return _finished(group, time)


class StepPublisher(StepReporter):
    """Publishes the requests and steps of an engine in the engine's own process.

    Args:
        publisher: Receives the messages.
    """

    def __init__(self, publisher: MessageSink) -> None:
        self._reports = ReportPublisher(publisher)
        super().__init__(self._reports.publish)

    def snapshot(self, engine: LLMEngine) -> Snapshot:
        """Returns the whole state of the engine, for viewers. Called between two steps."""
        return self._reports.restore(self.state(engine))


class FigurePublisher:
    """Publishes what the figures of a run are counted from: no batches, blocks, texts or prompts.

    Args:
        publisher: Receives the messages.
    """

    def __init__(self, publisher: MessageSink) -> None:
        self._publisher = publisher
        self._num_preemptions = 0

    def arrived(self, group: SequenceGroup) -> None:
        """Publishes that a group has joined the waiting queue."""
        self._publisher.publish(
            RequestArrived(
                request_id=group.request_id,
                arrival_time=group.arrival_time,
                seq_ids=[seq.seq_id for seq in group.seqs],
                num_prompt_tokens=group.first_seq.get_prompt_len(),
            )
        )

    def stepped(self, record: StepRecord) -> None:
        """Publishes a step and the requests that it finished."""
        publish = self._publisher.publish
        for group in (*record.ignored, *record.aborted):
            publish(_finished(group, group.metrics.finished_time or record.start_time))
        self._num_preemptions += len(record.preemptions)
        decodes = record.decodes
        publish(
            messages.Step(
                step=record.step,
                start_time=record.start_time,
                time=record.time,
                execute=None,
                sequences=merged(
                    [
                        messages.SequenceUpdate(
                            seq_id=update.seq.seq_id,
                            new_token_ids=update.new_token_ids,
                            is_removed=update.is_removed,
                        )
                        for update in record.others
                    ],
                    record.other_positions,
                    [
                        messages.SequenceUpdate(seq_id=seq_id, new_token_ids=[token_id])
                        for seq_id, token_id in zip(decodes.seq_ids, decodes.token_ids, strict=True)
                    ],
                ),
                stats=_stats(record, self._num_preemptions),
                metrics={group.request_id: group.metrics for group in record.changed_metrics},
                preemptions=[_preemption(preemption) for preemption in record.preemptions],
                wait_reasons=_wait_reasons(record),
            )
        )
        for group in record.finished:
            publish(_finished(group, record.time))


def _finished(group: SequenceGroup, time: float) -> RequestFinished:
    return RequestFinished(
        request_id=group.request_id,
        time=time,
        status=group.first_seq.status,
        metrics=group.metrics,
        text_lengths=[len(seq.output_text) for seq in group.seqs],
        seq_ids=[seq.seq_id for seq in group.seqs],
    )


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


def _wait_reasons(record: StepRecord) -> list[messages.WaitReason]:
    wait = record.admission_blocked
    if wait is None:
        return []
    return [
        messages.WaitReason(
            request_id=wait.request_id, cause=wait.cause, num_missing=wait.num_missing
        )
    ]
