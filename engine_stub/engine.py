"""The engine: requests go in, and each step computes some tokens of some of them."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

from engine_stub.block_manager import BlockManager
from engine_stub.config import EngineConfig
from engine_stub.detokenizer import Detokenizer
from engine_stub.hub import find_model
from engine_stub.model_config import ModelConfig
from engine_stub.output_processor import OutputProcessor
from engine_stub.pipeline import Pipeline
from engine_stub.scheduler import Scheduler, SchedulerOutputs
from engine_stub.step_record import SequenceUpdate, StepRecord
from engine_stub.tokenizer import Tokenizer
from engine_stub.worker import Worker, resolve_device, resolve_dtype
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    ParallelSampleSequenceGroup,
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceGroupBase,
    SequenceStatus,
    TokenInputs,
    token_inputs,
)

Prompt: TypeAlias = str | list[int] | TokenInputs
"""A prompt as text, as token ids, or as ids with the text they stand for."""

# Sampling parameters that are refused when given, rather than ignored.
_UNSUPPORTED_PARAMS = ("prompt_logprobs", "logits_processors", "guided_decoding", "bad_words")


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
        assert self.config.max_model_len is not None
        self.worker.initialize_cache(self.config.num_gpu_blocks)
        self.block_manager = BlockManager(
            self.config.num_gpu_blocks,
            self.config.block_size,
            enable_prefix_caching=self.config.enable_prefix_caching,
        )
        self.scheduler = Scheduler(self.config, self.block_manager)
        self.tokenizer = Tokenizer(config.model)
        self.max_model_len = self.config.max_model_len
        self.output_processor = OutputProcessor(Detokenizer(self.tokenizer), self.max_model_len)
        self.clock = clock
        self.seq_groups: dict[str, SequenceGroup] = {}
        self.seq_id_to_seq_group: dict[str, SequenceGroupBase] = {}
        self._seq_ids = itertools.count()
        self._steps = itertools.count()
        self._generate_ids = itertools.count()
        # What happened between steps, for the next record.
        self._ignored: list[SequenceGroup] = []
        self._aborted: list[SequenceGroup] = []

    def _size(self, config: EngineConfig) -> EngineConfig:
        """Fill in the size of the pool and the longest sequence, which has to fit into it."""
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
        return dataclasses.replace(
            config,
            num_gpu_blocks=num_blocks,
            max_model_len=min(longest, num_blocks * config.block_size),
        )

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        arrival_time: float | None = None,
        priority: int = 0,
    ) -> list[SequenceGroup]:
        """Put a request into the waiting queue.

        A prompt that leaves no room for a token within `max_model_len` is refused instead: its
        group is finished at once, with status ``FINISHED_IGNORED``.

        Args:
            prompt: Text, token ids, or both: ids with the text they stand for.
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
        text, token_ids = self._read(prompt)
        if params.truncate_prompt_tokens is not None:
            token_ids = token_ids[-params.truncate_prompt_tokens :]
        self._validate(token_ids, params)
        add: Callable[..., Any] = (
            self._add_processed_request
            if params.n == 1
            else partial(ParallelSampleSequenceGroup.add_request, engine=self)
        )
        add(
            request_id,
            params=self._with_stop_tokens(params),
            prompt=text,
            prompt_token_ids=token_ids,
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
        unfinished = [each for each in self._parts(request_id) if not each.is_finished()]
        for seq_group in unfinished:
            seq_group.first_seq.status = SequenceStatus.FINISHED_ABORTED
            self.scheduler.finish_seq_group(seq_group)
            seq_group.set_finished_time(self.clock())
            self._aborted.append(seq_group)
        return bool(unfinished)

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
        outputs = self.scheduler.schedule()
        scheduled_at = perf_counter()
        model_output = self.worker.execute_model(outputs.execute_model_req)
        executed_at = perf_counter()
        updates, finished = self._process_outputs(outputs, model_output.outputs)

        end_time = self.clock()
        durations = _Durations(
            scheduler_time=scheduled_at - begin,
            model_forward_time=model_output.model_forward_time,
            model_execute_time=executed_at - scheduled_at,
        )
        for scheduled, update in zip(outputs.scheduled, updates, strict=True):
            _record_times(scheduled.seq_group, update, start_time, end_time, durations)
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
            updates=updates,
            finished=finished,
            ignored=ignored,
            aborted=aborted,
            preemptions=outputs.preemptions,
            head_wait=outputs.head_wait,
            num_prefill_tokens=outputs.num_prefill_tokens,
            num_decode_tokens=outputs.num_decode_tokens,
            token_budget=self.config.max_num_batched_tokens,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            blocks=self.block_manager.stats,
            **dataclasses.asdict(durations),
            step_time=perf_counter() - begin,
        )

    def generate(self, prompts: Iterable[Prompt], params: SamplingParams) -> list[SequenceGroup]:
        """Run prompts to their ends, with whatever else is under way.

        Returns:
            One finished group per prompt, in order; for ``n > 1`` it holds all samples.

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
        self, outputs: SchedulerOutputs, results: list[CompletionSequenceGroupOutput]
    ) -> tuple[list[SequenceUpdate], list[SequenceGroup]]:
        """Advance the scheduled groups by what was computed and sampled for them."""
        updates: list[SequenceUpdate] = []
        finished: list[SequenceGroup] = []
        for scheduled, result in zip(outputs.scheduled, results, strict=True):
            seq_group = scheduled.seq_group
            seq_group.update_num_computed_tokens(scheduled.token_chunk_size)
            self.block_manager.mark_computed(seq_group.first_seq)
            updates.append(self.output_processor.process(seq_group, result.samples))
            if seq_group.is_finished():
                self.scheduler.finish_seq_group(seq_group)
                finished.append(seq_group)
        return updates, finished

    def _add_processed_request(
        self,
        request_id: str,
        *,
        params: SamplingParams,
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
        seq_group = SequenceGroup(
            request_id, [seq], arrival_time, sampling_params=params, priority=priority
        )
        self.seq_groups[request_id] = seq_group
        if seq.get_len() < self.max_model_len:
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

    def _read(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """A prompt's text, if known, and its tokens."""
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt)
        if isinstance(prompt, list):
            return None, list(prompt)
        return prompt.get("prompt"), list(prompt["prompt_token_ids"])

    def _validate(self, token_ids: list[int], params: SamplingParams) -> None:
        """Raise ValueError for a request that cannot be run as it stands."""
        if not token_ids:
            raise ValueError("the prompt holds no tokens")
        vocab_size = self.model_config.vocab_size
        for name, ids in (
            ("the prompt", token_ids),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("logit_bias", params.logit_bias or ()),
            ("stop_token_ids", params.stop_token_ids or ()),
        ):
            if unknown := [each for each in ids if not 0 <= each < vocab_size]:
                raise ValueError(
                    f"{name} holds token {unknown[0]}, outside the vocabulary of {vocab_size}"
                )
        if params.allowed_token_ids is not None:
            stops = params.all_stop_token_ids.union(self.model_config.eos_token_id)
            usable = set(params.allowed_token_ids).difference(stops if params.min_tokens else ())
            if not usable:
                raise ValueError("allowed_token_ids leaves no token to sample")
        for name in _UNSUPPORTED_PARAMS:
            if getattr(params, name) not in (None, []):
                raise ValueError(f"{name} is not supported by this engine")

    def _with_stop_tokens(self, params: SamplingParams) -> SamplingParams:
        """A copy of `params` that names every token at which this model stops."""
        params = params.clone()
        params.all_stop_token_ids.update(self.model_config.eos_token_id)
        if not params.ignore_eos:
            # A sequence knows one end-of-sequence token; the others are stop tokens.
            others = self.model_config.eos_token_id[1:]
            params.stop_token_ids = [*(params.stop_token_ids or ()), *others]
        return params


@dataclasses.dataclass(frozen=True, slots=True)
class _Durations:
    """Durations of a step's parts, in seconds; the names are those of `RequestMetrics`."""

    scheduler_time: float
    model_forward_time: float
    model_execute_time: float


def _record_times(
    seq_group: SequenceGroup,
    update: SequenceUpdate,
    start_time: float,
    end_time: float,
    durations: _Durations,
) -> None:
    """Enter a step into the metrics of a group that took part in it."""
    seq_group.maybe_set_first_scheduled_time(start_time)
    if update.new_token_ids:
        seq_group.maybe_set_first_token_time(end_time)
        seq_group.set_last_token_time(end_time)
    metrics = seq_group.metrics
    metrics.scheduler_time = (metrics.scheduler_time or 0.0) + durations.scheduler_time
    metrics.model_forward_time = (metrics.model_forward_time or 0.0) + durations.model_forward_time
    metrics.model_execute_time = (metrics.model_execute_time or 0.0) + durations.model_execute_time
