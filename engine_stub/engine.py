"""A continuous-batching engine.

Each step schedules a batch, runs the model on it and processes the outputs.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from engine_stub.config import EngineConfig
from engine_stub.core.block_manager import BlockManager
from engine_stub.core.scheduler import Scheduler, SchedulerOutputs
from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.model_executor.hub import find_model
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.processing.detokenizer import Detokenizer
from engine_stub.processing.input_processor import InputProcessor, Params, Prompt
from engine_stub.processing.output_processor import (
    OutputProcessor,
    ProcessedOutputs,
    drop_withheld_text,
)
from engine_stub.processing.tokenizer import Tokenizer
from engine_stub.step_record import StepRecord, sampled_request_ids
from engine_stub.step_timer import StepTimer
from engine_stub.worker.pool_sizes import bytes_per_block, with_pool_sizes
from engine_stub.worker.recorded_worker import RecordedWorker
from seqtop.sequence import (
    ParallelSampleSequenceGroup,
    PoolingParams,
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceGroupBase,
    SequenceStatus,
    token_inputs,
)
from seqtop.sequence.errors import ParameterError

if TYPE_CHECKING:
    from engine_stub.worker.pipeline import Pipeline
    from engine_stub.worker.worker import Worker


class LLMEngine:
    """A continuous-batching engine for one model, driven by calls of `step`. Not thread-safe.

    Attributes:
        config: The given settings, with everything that was left to the engine filled in.
        seq_groups: The groups that no step has reported as finished yet, by request id.
        seq_id_to_seq_group: For a request with ``n > 1``, the group that assembles its samples, by
            the request id of each sample that is not finished.

    Args:
        config: The settings.
        clock: Returns the time of day, in seconds since the epoch.
        timer: Returns the seconds since any fixed time, for the durations of a step's parts.
        worker: Answers in place of the model; None for the model, on the device and in the stages
            that `config` names.
        model_config: The model's configuration; None to read it.

    Raises:
        ValueError: A setting does not fit the model or the device.
        FileNotFoundError, UnsupportedModel, WeightsError: See `load_model`.
        StageError: A pipeline stage's process ended while it was being set up.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
        worker: Worker | Pipeline | RecordedWorker | None = None,
        model_config: ModelConfig | None = None,
    ) -> None:
        config = dataclasses.replace(config, model=find_model(config.model))
        self.model_config = model_config or ModelConfig.from_pretrained(config.model)
        if worker is None:
            from engine_stub.worker.start import start_worker  # imports torch

            config, worker = start_worker(config, self.model_config)
        self.worker: Worker | Pipeline | RecordedWorker = worker
        self.config = with_pool_sizes(config, self.model_config, self.worker)
        assert self.config.num_gpu_blocks is not None
        assert self.config.num_cpu_blocks is not None
        assert self.config.max_model_len is not None
        self.worker.initialize_cache(self.config.num_gpu_blocks, self.config.num_cpu_blocks)
        self.block_manager = BlockManager(
            self.config.num_gpu_blocks,
            self.config.block_size,
            enable_prefix_caching=self.config.enable_prefix_caching,
            num_cpu_blocks=self.config.num_cpu_blocks,
        )
        self.scheduler = Scheduler(self.config, self.block_manager)
        self.tokenizer = Tokenizer(config.model)
        self.input_processor = InputProcessor(self.config, self.model_config, self.tokenizer)
        self.max_model_len = self.config.max_model_len
        self._seq_ids = itertools.count()
        self.output_processor = OutputProcessor(
            Detokenizer(self.tokenizer), self.max_model_len, self.scheduler, self._seq_ids
        )
        self.clock = clock
        self._timer = timer
        self.seq_groups: dict[str, SequenceGroup] = {}
        self.seq_id_to_seq_group: dict[str, SequenceGroupBase] = {}
        self._steps = itertools.count()
        self._generate_ids = itertools.count()
        # Groups that ended between steps, for the next record.
        self._ignored: list[SequenceGroup] = []
        self._aborted: list[SequenceGroup] = []

    @property
    def bytes_per_block(self) -> int | None:
        """The bytes of a block of the device's KV pool, in all layers; `None` without a model."""
        if isinstance(self.worker, RecordedWorker):
            return None
        return bytes_per_block(self.config, self.model_config, self.model_config.num_hidden_layers)

    def step(self) -> StepRecord:
        """Runs one step: schedules a batch, executes it, processes its outputs, and records it.

        Raises:
            StageError: A pipeline stage ended or failed.
        """
        timer = StepTimer(self.clock, self._timer)
        scheduled = self.scheduler.schedule()
        timer.mark_scheduled()
        model_output = self.worker.execute_model(scheduled.execute_model_req)
        timer.mark_executed(model_output.model_forward_time)
        processed = self.output_processor.process(scheduled, model_output)
        timer.mark_processed()
        return self._record(scheduled, processed, timer)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: Params,
        arrival_time: float | None = None,
        priority: int = 0,
    ) -> list[SequenceGroup]:
        """Adds a request to the waiting queue.

        A prompt that leaves no room for a token within `max_model_len` is refused: its group is
        finished at once, with status ``FINISHED_IGNORED``.

        Args:
            request_id: A name that no unfinished request has.
            prompt: Text, token ids, or token ids with their text.
            params: Sampling parameters, or those of a beam search, whose group ends up with
                `beam_width` sequences, best first. With pooling parameters nothing is generated:
                the group is finished when its prompt has been computed, with `pooled_data` of
                shape ``[hidden_size]`` float32.
            arrival_time: Seconds since the epoch; None for now.
            priority: Requests with lower values run first; among equals, the first to arrive.

        Returns:
            The request's group or, for ``n > 1``, one group per sample, with request ids
            ``<request_id>_parallel_sample_<i>``.

        Raises:
            ValueError: The id is in use, the priority is no integer, the prompt is empty or holds
                unknown tokens, or the engine does not support the parameters.
        """
        if self._groups_of(request_id):
            raise ValueError(f"request id {request_id!r} is in use")
        if not isinstance(priority, int):
            raise ParameterError("priority", f"priority must be an integer, got {priority!r}")
        processed = self.input_processor.process(prompt, params)
        add: Callable[..., Any] = (
            self.add_processed_request
            if isinstance(processed.params, PoolingParams) or processed.params.n == 1
            else partial(ParallelSampleSequenceGroup.add_request, engine=self)
        )
        try:
            add(
                request_id,
                params=processed.params,
                prompt=processed.prompt,
                prompt_token_ids=processed.prompt_token_ids,
                arrival_time=self.clock() if arrival_time is None else arrival_time,
                priority=priority,
            )
        except Exception:
            # The samples that were added before the error are no part of a request.
            for seq_group in self._groups_of(request_id):
                self.seq_id_to_seq_group.pop(seq_group.request_id, None)
                self.abort_request(seq_group.request_id)
            raise
        return self._groups_of(request_id)

    def add_processed_request(
        self,
        request_id: str,
        *,
        params: SamplingParams | PoolingParams,
        prompt: str | None,
        prompt_token_ids: list[int],
        arrival_time: float,
        priority: int,
    ) -> SequenceGroup:
        """Makes the group of one sample, and queues or refuses it; see `add_request`.

        Args:
            params: Parameters of one sequence or of a beam search, with all stop tokens of the
                model, as `InputProcessor.process` returns them.
        """
        seq = Sequence(
            next(self._seq_ids),
            token_inputs(prompt_token_ids, prompt),
            self.config.block_size,
            self.model_config.eos_token_id[0] if self.model_config.eos_token_id else None,
        )
        is_pooling = isinstance(params, PoolingParams)
        seq_group = SequenceGroup(
            request_id,
            [seq],
            arrival_time,
            sampling_params=None if isinstance(params, PoolingParams) else params,
            pooling_params=params if isinstance(params, PoolingParams) else None,
            priority=priority,
            draft_size=1 + self.config.num_draft_tokens,
        )
        # Generation needs room for at least one token.
        if seq.get_len() + (not is_pooling) <= self.max_model_len:
            self.scheduler.add_seq_group(seq_group)
        else:
            seq.status = SequenceStatus.FINISHED_IGNORED
            seq_group.set_finished_time(self.clock())
            self._ignored.append(seq_group)
        self.seq_groups[request_id] = seq_group
        return seq_group

    _add_processed_request = add_processed_request
    """The name by which vLLM's `ParallelSampleSequenceGroup` adds each sample."""

    def abort_request(self, request_id: str) -> bool:
        """Aborts all unfinished samples of a request, and frees their blocks for the next step.

        The record of the next step contains the aborted groups. Text that was withheld because it
        could have been the start of a stop string is dropped.

        Returns:
            Whether there was an unfinished request with this id.
        """
        groups = [group for group in self._groups_of(request_id) if not group.is_finished()]
        for seq_group in groups:
            for seq in unfinished_seqs(seq_group):
                drop_withheld_text(seq)
            self.scheduler.abort_seq_group(seq_group)
            seq_group.set_finished_time(self.clock())
        self._aborted += groups
        return bool(groups)

    def has_unfinished_requests(self) -> bool:
        """Tells whether `step` has something to do.

        That includes reporting groups that have ended: to the worker, which keeps a finished group
        until the following step, and in a record.
        """
        return self.scheduler.has_work() or bool(self._ignored or self._aborted)

    def generate(self, prompts: Iterable[Prompt], params: Params) -> list[SequenceGroup]:
        """Adds a request for each prompt, and runs steps until all of them are finished.

        Returns:
            One finished group per prompt, in order. For ``n > 1`` it holds all samples; for a beam
            search it holds the outputs, best first.

        Raises:
            ValueError: See `add_request`; the prompts before the refused one stay queued.
        """
        groups: list[SequenceGroup] = []
        for prompt in prompts:
            request_id = f"generate-{next(self._generate_ids)}"
            samples = self.add_request(request_id, prompt, params)
            whole = self.seq_id_to_seq_group.get(samples[0].request_id)
            groups.append((whole and whole.assembled_seq_group) or samples[0])
        while not all(seq_group.is_finished() for seq_group in groups):
            self.step()
        return groups

    def close(self) -> None:
        """Ends the processes of the pipeline's stages, if there are any; no step may follow."""
        self.worker.close()

    def _record(
        self, scheduled: SchedulerOutputs, processed: ProcessedOutputs, timer: StepTimer
    ) -> StepRecord:
        """Updates the metrics of the groups of a step, and returns its record."""
        has_drafts = self.config.num_draft_tokens > 0
        # Plain decodes have all sampled.
        sampled = None
        if processed.other_groups:
            sampled = sampled_request_ids(processed.decodes, processed.others)
        changed_metrics: list[SequenceGroup] = []
        for group in scheduled.scheduled:
            seq_group = group.seq_group
            has_sampled = sampled is None or seq_group.request_id in sampled
            if timer.update_metrics(seq_group, has_sampled=has_sampled) or has_drafts:
                changed_metrics.append(seq_group)
        for seq_group in processed.finished:
            seq_group.set_finished_time(timer.end_time)
        ignored, self._ignored = self._ignored, []
        aborted, self._aborted = self._aborted, []
        for seq_group in (*processed.finished, *ignored, *aborted):
            self._remove(seq_group)
        return StepRecord(
            step=next(self._steps),
            start_time=timer.start_time,
            time=timer.end_time,
            execute_model_req=scheduled.execute_model_req,
            scheduled=scheduled.scheduled,
            decodes=processed.decodes,
            others=processed.others,
            other_positions=processed.other_positions,
            other_groups=processed.other_groups,
            table_changes=self.block_manager.table_changes,
            finished=processed.finished,
            ignored=ignored,
            aborted=aborted,
            changed_metrics=changed_metrics,
            errors=processed.errors,
            preemptions=scheduled.preemptions,
            admission_blocked=scheduled.admission_blocked,
            num_prefill_tokens=scheduled.num_prefill_tokens,
            num_decode_tokens=scheduled.num_decode_tokens - processed.num_unused_slots,
            token_budget=self.config.max_num_batched_tokens,
            num_running=self.scheduler.num_running_seqs,
            num_waiting=self.scheduler.waiting.num_seqs,
            num_swapped=self.scheduler.swapped.num_seqs,
            blocks=self.block_manager.stats,
            cache_events=self.block_manager.take_events(),
            scheduler_time=timer.scheduler_time,
            model_forward_time=timer.model_forward_time,
            model_execute_time=timer.model_execute_time,
            step_time=timer.step_time(),
        )

    def _groups_of(self, request_id: str) -> list[SequenceGroup]:
        """Returns the groups of a request that are not reported: its own, or one per sample."""
        if request_id in self.seq_groups:
            return [self.seq_groups[request_id]]
        return [
            self.seq_groups[sample_id]
            for sample_id, whole in self.seq_id_to_seq_group.items()
            if whole.group_id == request_id
        ]

    def _remove(self, seq_group: SequenceGroup) -> None:
        """Removes a finished group whose record is being made."""
        del self.seq_groups[seq_group.request_id]
        whole = self.seq_id_to_seq_group.pop(seq_group.request_id, None)
        if whole is not None:
            whole.maybe_assemble_group(seq_group)
            whole.finish_seq(seq_group)
            if whole.assembled_seq_group is not None:
                whole.assembled_seq_group.prompt_logprobs = seq_group.prompt_logprobs
