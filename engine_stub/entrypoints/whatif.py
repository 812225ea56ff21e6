"""Replays recorded workloads with the bundled engine's scheduler (`seqtop whatif`)."""

from __future__ import annotations

import dataclasses
import sys
from copy import copy
from pathlib import Path
from typing import Any

from engine_stub.config import DEFAULT_MODEL, SCHEDULER_SETTINGS, EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import FigurePublisher, StepPublisher, engine_info
from engine_stub.model_executor.hub import find_model
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.worker.recorded_worker import RecordedWorker
from seqtop.history.step_time import Size
from seqtop.sequence import SamplingParams, SequenceGroup
from seqtop.whatif.driver import serve
from seqtop.whatif.replay import Clock, MessageSink, ReplayOptions, WorkloadReplay
from seqtop.whatif.settings import POLICY
from seqtop.whatif.workload import Answer, Workload, WorkloadError, WorkloadRequest
from seqtop.wire.messages import ControlCall, EngineInfo

_INFO_SETTINGS = (
    "block_size",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "preemption_mode",
)
"""Settings that are fields of `EngineInfo`."""


class BundledScheduler:
    """The bundled engine without a model; a `seqtop.whatif.replay.ReplayedScheduler`.

    Args:
        workload: The recorded workload.
        options: The settings that are different.
        replay: Tells the durations of steps.
        clock: The clock of the engine.
        sink: Receives what the engine publishes.
        name: The name of the recording.

    Raises:
        ValueError: The engine refuses the settings.
        FileNotFoundError: The model is not there.
    """

    def __init__(
        self,
        workload: Workload,
        options: ReplayOptions,
        replay: WorkloadReplay,
        clock: Clock,
        sink: MessageSink,
        name: str,
    ) -> None:
        def ran(size: Size) -> float:
            seconds = replay.seconds(size)
            clock.now += seconds
            return seconds

        config = _config(workload.info, options)
        answers: dict[str, Answer] = {
            request_id: request.answer for request_id, request in workload.requests.items()
        }
        self._worker = RecordedWorker(answers, ran, is_speculative=config.speculative is not None)
        self._has_texts = replay.is_recorded
        clock.now = workload.info.start_time
        model_config = None
        if not workload.steps:  # a trace: no model runs, so its positions are no limit
            known = ModelConfig.from_pretrained(find_model(config.model))
            longest = workload.info.max_model_len
            model_config = dataclasses.replace(known, max_position_embeddings=longest)
        self._engine = LLMEngine(
            config, clock=clock, timer=clock, worker=self._worker, model_config=model_config
        )
        # Figures alone take a fifth less time.
        self._steps = StepPublisher(sink) if self._has_texts else FigurePublisher(sink)
        info = engine_info(self._engine, engine_id=workload.info.engine_id, control=False)
        info.model, info.dtype, info.device = (
            workload.info.model,
            workload.info.dtype,
            workload.info.device,
        )
        if (num_bytes := workload.info.bytes_per_block) is not None:
            info.bytes_per_block = num_bytes * info.block_size // workload.info.block_size
        info.predicted_from = name
        sink.publish(info)

    @property
    def has_work(self) -> bool:
        """True if a step has something to do."""
        return self._engine.has_unfinished_requests()

    def add(self, request: WorkloadRequest, arrival_time: float) -> None:
        """Adds a request; its parameters were completed when it was recorded.

        Raises:
            ValueError: The engine refuses it with these settings.
        """
        arrival = request.arrival
        params = arrival.sampling_params or arrival.pooling_params
        if params is None:
            raise ValueError("its parameters are not recorded")
        if isinstance(params, SamplingParams) and not params.stop and not self._has_texts:
            params = copy(params)
            params.detokenize = False  # a fifth of the time, and no decision depends on it
        group: SequenceGroup = self._engine.add_processed_request(
            arrival.request_id,
            params=params,
            prompt=arrival.prompt,
            prompt_token_ids=request.prompt_token_ids(),
            arrival_time=arrival_time,
            priority=arrival.priority,
        )
        self._steps.arrived(group)

    def abort(self, request_id: str, *, during_step: bool = False) -> None:
        """Aborts a request, if it is unfinished. This engine takes aborts between steps only."""
        self._engine.abort_request(request_id)

    def control(self, call: ControlCall) -> None:
        """Raises WorkloadError: there are no calls that the engine could repeat."""
        raise WorkloadError(f"{call.name} cannot be repeated")

    def schedule(self) -> None:
        """Raises WorkloadError: the engine is not asynchronous."""
        raise WorkloadError(
            "the engine processes the outputs of a step before it schedules another"
        )

    def process_outputs(self, num_steps: int) -> list[str]:
        """Does nothing: no outputs are in flight between steps."""
        return []

    def step(self) -> list[str]:
        """Runs a step; returns the requests of which no further token is recorded."""
        self._steps.stepped(self._engine.step())
        return self._worker.exhausted


def _config(info: EngineInfo, options: ReplayOptions) -> EngineConfig:
    """Returns the recorded settings with the different ones."""
    settings: dict[str, Any] = {name: getattr(info, name) for name in _INFO_SETTINGS}
    settings["num_cpu_blocks"] = info.num_cpu_blocks or 0
    settings |= {name: info.scheduler_settings[name] for name in SCHEDULER_SETTINGS}
    if info.max_model_len == info.num_gpu_blocks * info.block_size:
        settings["max_model_len"] = None  # it was what the pool had room for
    policy = info.scheduler_settings.get(POLICY)
    if policy is not None and POLICY not in options.settings:
        raise ValueError(
            f"the engine ran with the policy {policy}, which a recording does not contain;"
            " --policy gives its file"
        )
    settings |= options.settings
    known = {field.name for field in dataclasses.fields(EngineConfig)}
    assert settings.keys() <= known
    # The model does not run: its stages and its device make no difference.
    settings |= {"pipeline_parallel_size": 1, "device": "cpu", "dtype": "float32"}
    return EngineConfig(model=_model(info, options), **settings)


def _model(info: EngineInfo, options: ReplayOptions) -> Path:
    if options.model is not None:
        return Path(options.model)
    return DEFAULT_MODEL if info.model == "bundled stories" else Path(info.model)


if __name__ == "__main__":
    sys.exit(serve(BundledScheduler))
