"""The engine: requests go in, and each step computes some tokens of some of them."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import torch

from engine_stub.config import EngineConfig
from engine_stub.core.block_manager import BlockManager
from engine_stub.core.groups import unfinished
from engine_stub.core.scheduler import Scheduler, SchedulerOutputs
from engine_stub.core.table_changes import TableChanges
from engine_stub.model_executor.attention import PagedKVCache
from engine_stub.model_executor.hub import find_model
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.processing.detokenizer import Detokenizer
from engine_stub.processing.input_processor import InputProcessor, Params, Prompt
from engine_stub.processing.output_processor import OutputProcessor, is_plain
from engine_stub.processing.tokenizer import Tokenizer
from engine_stub.step_record import (
    DecodeRecord,
    ScheduledSequenceGroup,
    SequenceRecord,
    StepRecord,
)
from engine_stub.worker.model_runner import ModelOutput
from engine_stub.worker.pipeline import Pipeline
from engine_stub.worker.worker import Worker, resolve_device, resolve_dtype
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    ParallelSampleSequenceGroup,
    PoolingParams,
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceGroupBase,
    SequenceOutput,
    SequenceStatus,
    token_inputs,
)

# The most host memory that is taken to swap to, if nothing is said. For CUDA it is pinned, which is
# lost to everybody else; torch may take up to twice as much.
HOST_POOL_BYTES = 4 * 2**30


class LLMEngine:
    """A continuous-batching engine for one model, driven by calling `step`. Not thread-safe.

    Attributes:
        config: As given, with everything that was left to the engine filled in.
        seq_groups: The groups that no step has reported as finished, by request id.
        seq_id_to_seq_group: For a request of ``n > 1``, the whole that each part (by the part's
            request id) belongs to, until the part is finished.

    Args:
        config: What to run, and within which limits.
        clock: Time of day, in seconds since the epoch.

    Raises:
        ValueError: A setting does not fit the model or the device.
        FileNotFoundError, UnsupportedModel, WeightsError: see `load_model`.
        StageError: A stage's process has ended while it was being set up.
    """

    def __init__(self, config: EngineConfig, *, clock: Callable[[], float] = time.time) -> None:
        config = dataclasses.replace(config, model=find_model(config.model))
        self.model_config = ModelConfig.from_pretrained(config.model)
        device = resolve_device(config.device)
        dtype = resolve_dtype(config.dtype, device, self.model_config)
        config = dataclasses.replace(config, device=device, dtype=dtype)
        self.worker: Worker | Pipeline = (
            Worker(config, self.model_config)
            if config.pipeline_parallel_size == 1
            else Pipeline(config, self.model_config)
        )
        self.config = self._size(config)
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
        self.seq_groups: dict[str, SequenceGroup] = {}
        self.seq_id_to_seq_group: dict[str, SequenceGroupBase] = {}
        self._steps = itertools.count()
        self._generate_ids = itertools.count()
        # What happened between steps, for the next record.
        self._ignored: list[SequenceGroup] = []
        self._aborted: list[SequenceGroup] = []

    def _size(self, config: EngineConfig) -> EngineConfig:
        """Fill in the sizes of the pools and the longest sequence, which has to fit into one."""
        model_limit = self.model_config.max_position_embeddings
        if config.max_model_len is not None and config.max_model_len > model_limit:
            raise ValueError(
                f"max_model_len={config.max_model_len} is more than the {model_limit} positions "
                "of the model"
            )
        longest = config.max_model_len or model_limit
        if config.max_model_len is None and not config.enable_chunked_prefill:
            longest = min(longest, config.max_num_batched_tokens)
        num_blocks = config.num_gpu_blocks
        if num_blocks is None:
            most_useful = config.max_num_seqs * -(-longest // config.block_size)
            num_blocks = min(self.worker.determine_num_available_blocks(), most_useful)
        num_cpu_blocks = config.num_cpu_blocks
        if num_cpu_blocks is None:
            num_cpu_blocks = 0
            if config.preemption_mode == "swap":
                num_cpu_blocks = min(num_blocks, HOST_POOL_BYTES // self._bytes_per_block(config))
        return dataclasses.replace(
            config,
            num_gpu_blocks=num_blocks,
            num_cpu_blocks=num_cpu_blocks,
            max_model_len=min(longest, num_blocks * config.block_size),
        )

    def _bytes_per_block(self, config: EngineConfig) -> int:
        """Bytes that a block takes over the layers of all stages."""
        return PagedKVCache.bytes_per_block(
            self.model_config.num_hidden_layers,
            self.model_config.num_key_value_heads,
            config.block_size,
            self.model_config.head_dim,
            getattr(torch, config.dtype),
        )

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: Params,
        arrival_time: float | None = None,
        priority: int = 0,
    ) -> list[SequenceGroup]:
        """Put a request into the waiting queue.

        A prompt that leaves no room for a token within `max_model_len` is refused instead: its
        group is finished at once, with status ``FINISHED_IGNORED``.

        Args:
            prompt: Text, token ids, or both: ids with the text they stand for.
            params: How to sample, or how to search: the group then ends up with `beam_width`
                sequences, best first. With pooling parameters, nothing is generated: the group is
                finished when its prompt has been computed, with `pooled_data` of shape
                ``[hidden_size]`` float32.
            arrival_time: Seconds since the epoch; None for now.
            priority: Lower goes first; among equals, the first to arrive.

        Returns:
            The group it became or, for ``n > 1``, one per sample, with request ids
            ``<request_id>_parallel_sample_<i>``.

        Raises:
            ValueError: The id is in use, the prompt is empty or holds unknown tokens, or the
                parameters ask for what this engine cannot do.
        """
        if self._parts(request_id):
            raise ValueError(f"request id {request_id!r} is in use")
        processed = self.input_processor.process(prompt, params)
        add: Callable[..., Any] = (
            self._add_processed_request
            if isinstance(processed.params, PoolingParams) or processed.params.n == 1
            else partial(ParallelSampleSequenceGroup.add_request, engine=self)
        )
        add(
            request_id,
            params=processed.params,
            prompt=processed.prompt,
            prompt_token_ids=processed.prompt_token_ids,
            arrival_time=self.clock() if arrival_time is None else arrival_time,
            priority=priority,
        )
        return self._parts(request_id)

    def abort_request(self, request_id: str) -> bool:
        """End a request in whatever state it is, all samples of it if there are several.

        Its blocks are free for the next step, whose record names it.

        Returns:
            Whether there was an unfinished request of this id.
        """
        parts = [each for each in self._parts(request_id) if not each.is_finished()]
        for seq_group in parts:
            for seq in unfinished(seq_group):
                seq.status = SequenceStatus.FINISHED_ABORTED
            self.scheduler.finish_seq_group(seq_group)
            seq_group.set_finished_time(self.clock())
            self._aborted.append(seq_group)
        return bool(parts)

    def close(self) -> None:
        """End the stages' processes, where there are any; no step may follow."""
        self.worker.close()

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do.

        That is so, too, while ends remain to be told: to the worker, which keeps a finished
        group until the step after its last, or in a record.
        """
        return self.scheduler.has_work() or bool(self._ignored or self._aborted)

    def step(self) -> StepRecord:
        """Schedule a batch, execute it, and process what came out."""
        begin = perf_counter()
        start_time = self.clock()
        self.block_manager.begin_step()
        outputs = self.scheduler.schedule()
        scheduled_at = perf_counter()
        model_output = self.worker.execute_model(outputs.execute_model_req)
        executed_at = perf_counter()
        table_changes = self.block_manager.table_changes
        outcome = self._process_outputs(outputs, model_output, table_changes)

        end_time = self.clock()
        durations = _Durations(
            scheduler_time=scheduled_at - begin,
            model_forward_time=model_output.model_forward_time,
            model_execute_time=executed_at - scheduled_at,
        )
        sampled = {update.request_id for update in outcome.rest_updates if update.new_token_ids}
        sampled.update(outcome.decodes.request_ids)
        for scheduled in outputs.scheduled:
            seq_group = scheduled.seq_group
            _record_times(
                seq_group, start_time, end_time, durations, seq_group.request_id in sampled
            )
        finished = outcome.finished
        for seq_group in finished:
            seq_group.set_finished_time(end_time)
        ignored, self._ignored = self._ignored, []
        aborted, self._aborted = self._aborted, []
        for seq_group in (*finished, *ignored, *aborted):
            self._forget(seq_group)
        return StepRecord(
            step=next(self._steps),
            start_time=start_time,
            time=end_time,
            execute_model_req=outputs.execute_model_req,
            scheduled=outputs.scheduled,
            decodes=outcome.decodes,
            rest=outcome.rest,
            rest_updates=outcome.rest_updates,
            table_changes=table_changes,
            finished=finished,
            ignored=ignored,
            aborted=aborted,
            preemptions=outputs.preemptions,
            head_wait=outputs.head_wait,
            num_prefill_tokens=outputs.num_prefill_tokens,
            num_decode_tokens=outputs.num_decode_tokens - _num_unused(outputs, model_output),
            token_budget=self.config.max_num_batched_tokens,
            num_running=sum(map(len, map(unfinished, self.scheduler.running))),
            num_waiting=self.scheduler.waiting.num_seqs,
            num_swapped=self.scheduler.swapped.num_seqs,
            blocks=self.block_manager.stats,
            cache_changes=self.block_manager.take_cache_changes(),
            scheduler_time=durations.scheduler_time,
            model_forward_time=durations.model_forward_time,
            model_execute_time=durations.model_execute_time,
            step_time=perf_counter() - begin,
        )

    def generate(self, prompts: Iterable[Prompt], params: Params) -> list[SequenceGroup]:
        """Run prompts to their ends, with whatever else is under way.

        Returns:
            One finished group per prompt, in order; for ``n > 1`` it holds all samples, for a beam
            search the outputs found, best first.

        Raises:
            ValueError: See `add_request`; the prompts before the one at fault stay queued.
        """
        groups: list[SequenceGroup] = []
        for prompt in prompts:
            request_id = f"generate-{next(self._generate_ids)}"
            parts = self.add_request(request_id, prompt, params)
            whole = self.seq_id_to_seq_group.get(parts[0].request_id)
            groups.append((whole and whole.assembled_seq_group) or parts[0])
        while not all(seq_group.is_finished() for seq_group in groups):
            self.step()
        return groups

    def _process_outputs(
        self, outputs: SchedulerOutputs, model_output: ModelOutput, table_changes: TableChanges
    ) -> _Outcome:
        """Advance the scheduled groups by what was computed and sampled for them."""
        outcome = _Outcome()
        drafted = model_output.num_draft_tokens
        for index, (scheduled, result) in enumerate(
            zip(outputs.scheduled, model_output.outputs, strict=True)
        ):
            seq_group = scheduled.seq_group
            if (
                scheduled.token_chunk_size == len(result.samples) == 1
                and not (scheduled.is_prompt or drafted)
                and is_plain(seq_group.sampling_params)
                and table_changes.is_plain(seq_group.first_seq.seq_id)
            ):
                update = self._decode(seq_group, result.samples[0], outcome.decodes)
                if update is None:
                    continue  # as nearly all do: it goes on
                outcome.rest.append(index)
                outcome.rest_updates.append(update)
            else:
                outcome.rest.append(index)
                outcome.rest_updates += self._process(scheduled, result, model_output, index)
            if seq_group.is_finished():
                self.scheduler.finish_seq_group(seq_group)
                outcome.finished.append(seq_group)
        return outcome

    def _decode(
        self, seq_group: SequenceGroup, sample: SequenceOutput, decodes: DecodeRecord
    ) -> SequenceRecord | None:
        """Take a group's only sequence a token further, the usual way; see `OutputProcessor`."""
        seq = seq_group.first_seq
        seq.data.update_num_computed_tokens(1)
        self.block_manager.mark_computed(seq)
        return self.output_processor.decode(seq_group, sample, decodes)

    def _process(
        self,
        scheduled: ScheduledSequenceGroup,
        result: CompletionSequenceGroupOutput,
        model_output: ModelOutput,
        index: int,
    ) -> list[SequenceRecord]:
        """Advance one group, the `index`th of the batch, in any way there is."""
        seq_group = scheduled.seq_group
        num_computed_before = seq_group.first_seq.get_num_computed_tokens()
        seq_group.update_num_computed_tokens(scheduled.token_chunk_size)
        for seq in unfinished(seq_group):
            self.block_manager.mark_computed(seq)
        if result.prompt_logprobs is not None:
            self.output_processor.process_prompt_logprobs(
                seq_group, result.prompt_logprobs, num_computed_before
            )
        if seq_group.pooling_params is not None:
            assert model_output.pooler_output is not None
            return self.output_processor.process_pooled(
                seq_group, model_output.pooler_output[index]
            )
        drafted = model_output.num_draft_tokens
        updates = self.output_processor.process(
            seq_group, result.samples, drafted[index] if drafted else None
        )
        if scheduled.num_lookahead_slots:
            self.block_manager.mark_computed(seq_group.first_seq)
        return updates

    def _add_processed_request(
        self,
        request_id: str,
        *,
        params: SamplingParams | PoolingParams,
        prompt: str | None,
        prompt_token_ids: list[int],
        arrival_time: float,
        priority: int,
    ) -> SequenceGroup:
        """Make the group of one sample, and queue or refuse it."""
        seq = Sequence(
            next(self._seq_ids),
            token_inputs(prompt_token_ids, prompt),
            self.config.block_size,
            self.model_config.eos_token_id[0] if self.model_config.eos_token_id else None,
        )
        pools = isinstance(params, PoolingParams)
        seq_group = SequenceGroup(
            request_id,
            [seq],
            arrival_time,
            sampling_params=None if isinstance(params, PoolingParams) else params,
            pooling_params=params if isinstance(params, PoolingParams) else None,
            priority=priority,
            draft_size=1 + (self.config.num_speculative_tokens if self.config.speculative else 0),
        )
        self.seq_groups[request_id] = seq_group
        # What is generated needs room for a token at least.
        if seq.get_len() + (not pools) <= self.max_model_len:
            self.scheduler.add_seq_group(seq_group)
        else:
            seq.status = SequenceStatus.FINISHED_IGNORED
            seq_group.set_finished_time(self.clock())
            self._ignored.append(seq_group)
        return seq_group

    def _parts(self, request_id: str) -> list[SequenceGroup]:
        """The groups a request is run as, unless reported: itself, or one per sample."""
        if request_id in self.seq_groups:
            return [self.seq_groups[request_id]]
        return [
            self.seq_groups[part]
            for part, whole in self.seq_id_to_seq_group.items()
            if whole.group_id == request_id
        ]

    def _forget(self, seq_group: SequenceGroup) -> None:
        """Drop a group that is finished and about to be reported."""
        del self.seq_groups[seq_group.request_id]
        whole = self.seq_id_to_seq_group.pop(seq_group.request_id, None)
        if whole is not None:
            whole.maybe_assemble_group(seq_group)
            whole.finish_seq(seq_group)
            if whole.assembled_seq_group is not None:
                whole.assembled_seq_group.prompt_logprobs = seq_group.prompt_logprobs


class _Outcome(msgspec.Struct):
    """What has become of the groups of a step; the fields are those of `StepRecord`."""

    decodes: DecodeRecord = msgspec.field(default_factory=DecodeRecord)
    rest: list[int] = []
    rest_updates: list[SequenceRecord] = []
    finished: list[SequenceGroup] = []


@dataclasses.dataclass(frozen=True, slots=True)
class _Durations:
    """Durations of a step's parts, in seconds; the names are those of `RequestMetrics`."""

    scheduler_time: float
    model_forward_time: float
    model_execute_time: float


def _num_unused(outputs: SchedulerOutputs, model_output: ModelOutput) -> int:
    """Tokens of drafts that were planned for, and that nobody proposed."""
    if model_output.num_draft_tokens is None:
        return 0
    num_slots = sum(scheduled.num_lookahead_slots for scheduled in outputs.scheduled)
    return num_slots - sum(model_output.num_draft_tokens)


def _record_times(
    seq_group: SequenceGroup,
    start_time: float,
    end_time: float,
    durations: _Durations,
    has_sampled: bool,
) -> None:
    """Enter a step into the metrics of a group that took part in it."""
    seq_group.maybe_set_first_scheduled_time(start_time)
    if has_sampled:
        seq_group.maybe_set_first_token_time(end_time)
        seq_group.set_last_token_time(end_time)
    metrics = seq_group.metrics
    metrics.scheduler_time = (metrics.scheduler_time or 0.0) + durations.scheduler_time
    metrics.model_forward_time = (metrics.model_forward_time or 0.0) + durations.model_forward_time
    metrics.model_execute_time = (metrics.model_execute_time or 0.0) + durations.model_execute_time
