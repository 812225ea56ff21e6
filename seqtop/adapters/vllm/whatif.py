"""Replays recorded workloads with vLLM's own scheduler, without a model and without a device.

The driver of `seqtop whatif` for recordings of vLLM. It creates vLLM's V1 scheduler and its
KV-cache manager, of whatever version this Python has, and no engine: `VllmScheduler.step` calls
`schedule` and `update_from_output` as vLLM's `EngineCore` does, and the outputs between are the
recorded tokens. What it publishes comes from the code that observes a real engine.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import msgspec

from seqtop.adapters.detokenizer import load_detokenizer
from seqtop.adapters.observations import AnyObservation
from seqtop.adapters.publisher_process import encode
from seqtop.adapters.translate import Translator, engine_info
from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.prefix_cache_observer import why_not_observable
from seqtop.adapters.vllm.probe import probe
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.wrapping import Wrapping
from seqtop.history.step_time import Size
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.whatif.driver import serve
from seqtop.whatif.replay import Clock, MessageSink, ReplayOptions, WorkloadReplay
from seqtop.whatif.workload import Answer, Workload, WorkloadError, WorkloadRequest
from seqtop.wire.messages import ControlCall, EngineInfo, Event, RequestArrived, Setting
from seqtop.wire.snapshot import Snapshot

_ENVIRONMENT: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "SEQTOP_BIND": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
}
"""Variables that keep vLLM from a device, and the adapter from publishing this scheduler."""

_LIMITS: Final = (
    "block_size",
    "num_gpu_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "enable_prefix_caching",
)
"""Settings that are fields of `EngineInfo`."""

_OF_SCHEDULER: Final = (
    "policy",
    "async_scheduling",
    "max_num_active_seqs",
    "max_num_scheduled_tokens",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "watermark",
    "prefill_schedule_interval",
)
"""Further settings, of vLLM's `SchedulerConfig`. No version has all of them."""

_OF_CACHE: Final = ("prefix_cache_retention_interval", "prefix_match_unit")
"""Further settings, of vLLM's `CacheConfig`."""

_REFUSED: Final[dict[str, tuple[Setting, ...]]] = {
    "kv_transfer_config.kv_connector": (None,),
    "speculative_config.method": (None,),
    "pipeline_parallel_size": (1,),
    "decode_context_parallel_size": (1,),
    "prefill_context_parallel_size": (1,),
    "data_parallel_size": (1,),
    "scheduler_cls": (None, "Scheduler", "AsyncScheduler"),
}
"""Settings that cannot be replayed, with the values that can."""

_MOST_EMPTY_STEPS: Final = 1_000
"""Steps in a row that schedule nothing although requests wait, after which nothing will change."""


class VllmScheduler:
    """vLLM's scheduler with a model that returns recorded tokens; a `seqtop.whatif` scheduler.

    Args:
        workload: The recorded workload.
        options: The settings that are different.
        replay: Tells the durations of steps.
        clock: The clock of the engine.
        sink: Receives what the adapter publishes.
        name: The name of the recording.

    Raises:
        ValueError: The workload cannot be replayed, or vLLM refuses the settings.
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
        _check(workload)
        self._workload, self._replay, self._clock, self._sink = workload, replay, clock, sink
        self._is_predicting = options.step_time is not None
        clock.now = workload.info.start_time
        engine = _Engine(workload.info, options.settings)
        self._engine, self._scheduler = engine, engine.scheduler
        self._model = RecordedModel(
            {request_id: request.answer for request_id, request in workload.requests.items()}
        )
        self._in_flight: deque[_InFlight] = deque()
        """Scheduled steps whose outputs have not been processed."""
        self._num_processed = self._num_empty = 0
        self._finish_time = clock.now
        """The time at which the model has the outputs of the last scheduled step."""
        self._aborted: list[str] = []
        """Requests to abort after the next step is scheduled."""
        self._failure: Exception | None = None
        not_available = probe(self._scheduler)
        recorded = workload.info
        settings = PublisherSettings(bind="", engine_id=recorded.engine_id, tokenizer="")
        started, layout = describe(self._scheduler, settings)
        if reason := why_not_observable(self._scheduler, layout):
            not_available.setdefault("prefix_misses", reason)
        not_available["cuda_graph"] = recorded.not_available.get(
            "cuda_graph", "a prediction runs no model"
        )
        started = msgspec.structs.replace(
            started,
            model=recorded.model,
            dtype=recorded.dtype,
            device=recorded.device,
            start_time=recorded.start_time,
            tokenizer=recorded.tokenizer,
            data_parallel_rank=recorded.data_parallel_rank or 0,
            max_loras=recorded.max_loras,
            max_num_encoder_input_tokens=recorded.max_num_encoder_input_tokens,
            encoder_cache_size=recorded.encoder_cache_size,
            has_random_suffix=False,
            not_available=not_available,
        )
        info = engine_info(started)
        info.predicted_from = name
        sink.publish(info)
        translator = Translator(started, load_detokenizer(recorded.tokenizer, None))
        SchedulerObserver(
            self._scheduler,
            Wrapping(self._failed).wrap,
            InProcess(translator, self._publish),
            layout,
            {*not_available, "parents"},  # the recording has them
            clock=clock,
            timer=clock,
        )

    @property
    def has_work(self) -> bool:
        """True if a step has something to do."""
        return bool(self._in_flight) or self._scheduler.has_requests()

    def add(self, request: WorkloadRequest, arrival_time: float) -> None:
        """Adds a request.

        Raises:
            ValueError: vLLM refuses it with these settings.
        """
        arrival = request.arrival
        most = self._scheduler.max_model_len
        if arrival.num_prompt_tokens >= most:  # which vLLM's front end checks
            raise ValueError(
                f"its prompt of {arrival.num_prompt_tokens} tokens is not shorter than"
                f" max_model_len, {most}"
            )
        self._model.add(arrival)
        self._scheduler.add_request(self._engine.request(arrival, arrival_time))

    def abort(self, request_id: str, *, during_step: bool = False) -> None:
        """Aborts a request, if it is unfinished: now, or after the next step is scheduled."""
        if during_step:
            self._aborted.append(request_id)
        else:
            self._finish([request_id])

    def control(self, call: ControlCall) -> None:
        """Repeats a call from outside.

        Raises:
            WorkloadError: This version of vLLM does not have it.
        """
        try:
            if call.name == "reset_prefix_cache":
                self._scheduler.reset_prefix_cache(reset_running_requests=bool(call.argument))
            else:
                from vllm.v1.core.sched.interface import PauseState

                self._scheduler.set_pause_state(PauseState[str(call.argument)])
        except (AttributeError, ImportError, KeyError, TypeError) as error:
            raise WorkloadError(
                f"this version of vLLM has no {call.name}({call.argument})"
            ) from error

    def step(self) -> list[str]:
        """Schedules a step, and processes outputs as vLLM's `EngineCore.step_fn` does."""
        if self._scheduler.has_requests():
            self.schedule()
        exhausted: list[str] = []
        while self._in_flight and (
            len(self._in_flight) >= self._engine.max_concurrent_batches
            or not self._scheduler.has_requests()
        ):
            exhausted += self._process()
        self._finish(self._aborted)
        self._aborted = []
        return exhausted

    def schedule(self) -> None:
        """Schedules a step, and processes no outputs."""
        output = self._scheduler.schedule()
        result = self._model.execute(output)
        # The model may be busy with the step before.
        start = max(self._clock.now, self._finish_time)
        self._finish_time = start + self._replay.seconds(result.size)
        self._in_flight.append(_InFlight(output, result, self._finish_time))
        self._count_empty(output)
        # What ends from now on has ended after the step was scheduled.
        self._clock.now = math.nextafter(self._clock.now, math.inf)

    def process_outputs(self, num_steps: int) -> list[str]:
        """Processes outputs, up to those of the first steps."""
        exhausted: list[str] = []
        while self._in_flight and self._num_processed < num_steps:
            exhausted += self._process()
        return exhausted

    def _process(self) -> list[str]:
        """Processes the outputs of the oldest step in flight."""
        output, result, time = self._in_flight.popleft()
        self._clock.now = max(self._clock.now, time)
        self._finish(self._aborted)
        self._aborted = []
        self._scheduler.update_from_output(output, self._engine.model_output(output, result))
        self._num_processed += 1
        if self._failure is not None:
            raise self._failure
        running = {request.request_id for request in self._scheduler.running}
        # Others have ended, or sample that token again after their preemption.
        return [name for name in result.exhausted if name in running]

    def _finish(self, request_ids: list[str]) -> None:
        if request_ids:
            self._scheduler.finish_requests(request_ids, self._engine.aborted)

    def _count_empty(self, output: Any) -> None:
        self._num_empty = 0 if output.total_num_scheduled_tokens else self._num_empty + 1
        if self._is_predicting and self._num_empty > _MOST_EMPTY_STEPS:
            waiting = next(iter(self._scheduler.requests), "")
            raise WorkloadError(f"request {waiting} is never scheduled with these settings")

    def _publish(self, event: Event) -> None:
        """Records an event, with what a request lacks that was made from its recording."""
        if isinstance(event, RequestArrived):
            arrival = self._workload.requests[event.request_id].arrival
            event.prompt = arrival.prompt
            event.sampling_params = arrival.sampling_params
            event.parent_request_id = arrival.parent_request_id
            event.cache_salt = arrival.cache_salt
        self._sink.publish(event)

    def _failed(self, error: Exception) -> None:
        self._failure = error


class _InFlight(NamedTuple):
    """A step in flight."""

    output: Any
    """vLLM's `SchedulerOutput`."""
    result: Result
    time: float
    """The time at which its outputs are there."""


class Result(NamedTuple):
    """The model's output of a step."""

    token_ids: list[list[int]]
    """The new tokens of each request in the batch."""
    exhausted: list[str]
    """Requests that are due a token that is not recorded."""
    size: Size


class RecordedModel:
    """Returns the recorded tokens of the requests that are due one.

    Args:
        answers: The tokens by request id.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self._num_prompt: dict[str, int] = {}
        self._num_known: dict[str, int] = {}
        """The tokens of each request, those of steps in flight included."""
        self._is_prefill: dict[str, bool] = {}
        """True until a request samples a token after its last admission."""

    def add(self, arrival: RequestArrived) -> None:
        """Adds a request."""
        self._num_prompt[arrival.request_id] = arrival.num_prompt_tokens

    def execute(self, output: Any) -> Result:
        """Returns the tokens for a `SchedulerOutput`."""
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for new in output.scheduled_new_reqs:
            # The newer model runner gets a request that was preempted as a new one.
            known = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            self._admit(new.req_id, len(known))
            computed[new.req_id] = new.num_computed_tokens
        for request_id in cached.resumed_req_ids:
            self._admit(request_id, len(cached.all_token_ids[request_id]))
        token_ids: list[list[int]] = []
        exhausted: list[str] = []
        num_prefill = num_decode = 0
        for request_id, count in output.num_scheduled_tokens.items():
            if self._is_prefill[request_id]:
                num_prefill += count
            else:
                num_decode += count
            known = self._num_known[request_id]
            new_ids: list[int] = []
            if computed[request_id] + count >= known:
                index = known - self._num_prompt[request_id]
                new_ids = self._answers[request_id].token_ids[index : index + 1]
                if not new_ids:
                    exhausted.append(request_id)
                self._num_known[request_id] = known + len(new_ids)
                self._is_prefill[request_id] = False
            token_ids.append(new_ids)
        return Result(token_ids, exhausted, Size(num_prefill, num_decode))

    def _admit(self, request_id: str, num_known: int) -> None:
        self._num_known[request_id] = num_known
        self._is_prefill[request_id] = True


class InProcess:
    """Converts observations in this process; an `ObservationSink`.

    Args:
        translator: Converts them to messages.
        publish: Receives the messages of an engine that was observed from its start.
    """

    wants_all_requests = False

    def __init__(self, translator: Translator, publish: Callable[[Event], object]) -> None:
        self._translator, self._publish = translator, publish
        self._decoder = msgspec.msgpack.Decoder(AnyObservation)

    def send(self, observation: AnyObservation) -> None:
        """Publishes the messages for an observation."""
        # vLLM goes on changing its own objects.
        received = self._decoder.decode(encode(observation))
        for event in self._translator.events(received):
            assert not isinstance(event, Snapshot)
            self._publish(event)


class _Engine:
    """vLLM's scheduler, and what has to be made for it.

    Args:
        info: The recorded settings.
        changes: Other settings.

    Attributes:
        scheduler: The scheduler.
        aborted: The status of aborted requests.
        max_concurrent_batches: Steps that may be in flight.

    Raises:
        ValueError: vLLM refuses the settings.
    """

    def __init__(self, info: EngineInfo, changes: dict[str, Setting]) -> None:
        import vllm
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request, RequestStatus
        from vllm.v1.structured_output import StructuredOutputManager

        _check_changes(info, changes, vllm.__version__)
        limits = {name: getattr(info, name) for name in _LIMITS} | changes
        config = _configuration(limits)
        further = info.scheduler_settings | changes
        if "max_num_batched_tokens" in changes:
            further.setdefault("max_num_scheduled_tokens", None)  # by default, it is the same
        for part, names in (
            (config.scheduler_config, _OF_SCHEDULER),
            (config.cache_config, _OF_CACHE),
        ):
            for name in names:
                if name in further and hasattr(part, name):
                    setattr(part, name, further[name])
                elif name in changes:
                    raise ValueError(f"vLLM {vllm.__version__} has no setting {name}")
        config.cache_config.num_gpu_blocks = limits["num_gpu_blocks"]
        config.cache_config.block_size = limits["block_size"]
        kv_cache = _kv_cache(info, limits, config)
        block_size, hash_block_size = _block_sizes(kv_cache, config)
        arguments = {
            "vllm_config": config,
            "kv_cache_config": kv_cache,
            "structured_output_manager": StructuredOutputManager(config),
            "block_size": block_size,
            "hash_block_size": hash_block_size,
            "log_stats": False,
        }
        scheduler_class = config.scheduler_config.get_scheduler_cls()
        self.scheduler = scheduler_class(**_known(scheduler_class, arguments))
        self.aborted = RequestStatus.FINISHED_ABORTED
        self.max_concurrent_batches = 2 if config.scheduler_config.async_scheduling else 1
        self._request_class, self._output_class = Request, ModelRunnerOutput
        self._hasher = _hasher(config, hash_block_size)

    def request(self, arrival: RequestArrived, arrival_time: float) -> Any:
        """Returns vLLM's `Request` for a recorded one."""
        from vllm.sampling_params import SamplingParams

        recorded = arrival.sampling_params
        assert recorded is not None
        params = SamplingParams(
            temperature=0.0,
            max_tokens=recorded.max_tokens,
            min_tokens=recorded.min_tokens,
            stop_token_ids=recorded.stop_token_ids,
            ignore_eos=recorded.ignore_eos,
            prompt_logprobs=recorded.prompt_logprobs,  # these tokens are not read from the cache
            detokenize=False,
        )
        if hasattr(params, "_eos_token_id"):
            params._eos_token_id = arrival.eos_token_id
        arguments = {
            "request_id": arrival.request_id,
            "prompt_token_ids": list(arrival.prompt_token_ids),
            "sampling_params": params,
            "pooling_params": None,
            "arrival_time": arrival_time,
            "cache_salt": arrival.cache_salt or None,
            "priority": arrival.priority,
            "block_hasher": self._hasher,
            "eos_token_id": arrival.eos_token_id,  # of older versions
        }
        return self._request_class(**_known(self._request_class, arguments))

    def model_output(self, output: Any, result: Result) -> Any:
        """Returns the result of a step as vLLM's `ModelRunnerOutput`."""
        request_ids = list(output.num_scheduled_tokens)
        return self._output_class(
            req_ids=request_ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
            sampled_token_ids=result.token_ids,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )


def _check(workload: Workload) -> None:
    """Raises ValueError for what cannot be replayed."""
    info = workload.info
    for name, values in _REFUSED.items():
        value = info.scheduler_settings.get(name, values[0])
        if value not in values:
            raise ValueError(f"the engine ran with {name}={value}, which cannot be replayed")
    if not info.kv_cache_specs:
        raise ValueError("the recording does not describe the engine's KV cache")
    for request_id, request in workload.requests.items():
        arrival = request.arrival
        what = ""
        if arrival.sampling_params is None:
            what = "has no sampling parameters, as for pooling"
        elif arrival.num_encoder_inputs:
            what = "has images or other inputs of an encoder"
        elif len(arrival.prompt_token_ids) != arrival.num_prompt_tokens:
            what = "has a prompt of embeddings"
        elif arrival.engine_status.startswith("WAITING_FOR_"):
            what = f"arrived as {arrival.engine_status}"
        if what:
            raise ValueError(f"request {request_id} {what}, which cannot be replayed")


def _check_changes(info: EngineInfo, changes: dict[str, Setting], version: str) -> None:
    for name in changes:
        if name not in (*_LIMITS, *_OF_SCHEDULER, *_OF_CACHE):
            raise ValueError(f"{name} cannot be changed for vLLM {version}")
    if "block_size" in changes and len(info.kv_cache_specs) > 1:
        raise ValueError("block_size cannot be changed for a model with several KV-cache groups")


def _configuration(limits: Mapping[str, Any]) -> Any:
    """Returns a configuration of vLLM with some limits, for a model that is never loaded.

    vLLM computes some settings from the model's and the platform's; they are set afterwards.
    """
    from vllm.engine.arg_utils import EngineArgs

    with TemporaryDirectory(prefix="seqtop-") as directory:
        model = _MODEL | {"max_position_embeddings": limits["max_model_len"]}
        Path(directory, "config.json").write_text(json.dumps(model), encoding="utf-8")
        arguments = EngineArgs(
            model=directory,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=limits["max_model_len"],
            max_num_seqs=limits["max_num_seqs"],
            max_num_batched_tokens=limits["max_num_batched_tokens"],
            enable_prefix_caching=limits["enable_prefix_caching"],
            enable_chunked_prefill=limits["enable_chunked_prefill"],
            enforce_eager=True,
        )
        try:
            config = arguments.create_engine_config()
        except ValueError as error:
            raise ValueError(f"vLLM refuses the settings: {_in_one_line(error)}") from error
    config.scheduler_config.enable_chunked_prefill = limits["enable_chunked_prefill"]
    config.cache_config.enable_prefix_caching = limits["enable_prefix_caching"]
    return config


def _in_one_line(error: ValueError) -> str:
    """Returns the message of an error, without what pydantic adds to it."""
    details = getattr(error, "errors", None)
    message = details()[0]["msg"] if details is not None else str(error)
    return " ".join(str(message).removeprefix("Value error, ").split())


_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "vocab_size": 1 << 20,
    "torch_dtype": "float32",
}
"""A model. The scheduler needs none, but vLLM's configuration does."""


def _kv_cache(info: EngineInfo, limits: Mapping[str, Any], config: Any) -> Any:
    """Returns the recorded `KVCacheConfig`. Raises ValueError if it cannot be made."""
    from vllm.v1 import kv_cache_interface

    groups = []
    for index, recorded in enumerate(info.kv_cache_specs):
        # No decision depends on the shape of a block.
        shape = {"num_kv_heads": 1, "head_size": 1, "dtype": config.model_config.dtype}
        values: dict[str, Any] = shape | recorded
        kind = str(values.pop("kind"))
        spec_class: Any = getattr(kv_cache_interface, kind, None)
        if len(info.kv_cache_specs) == 1:
            values["block_size"] = limits["block_size"]
        try:
            spec = spec_class(**_known(spec_class, values))
        except (TypeError, ValueError) as error:
            raise ValueError(f"a KV cache of kind {kind} cannot be replayed") from error
        groups.append(kv_cache_interface.KVCacheGroupSpec([f"layer.{index}"], spec))
    config_class = kv_cache_interface.KVCacheConfig
    interval = getattr(config.cache_config, "prefix_cache_retention_interval", None)
    arguments = {
        "num_blocks": limits["num_gpu_blocks"],
        "kv_cache_tensors": [],
        "kv_cache_groups": groups,
        "prefix_cache_retention_interval": interval,
    }
    return config_class(**_known(config_class, arguments))


def _block_sizes(kv_cache: Any, config: Any) -> tuple[int, int]:
    """Returns the block size of the scheduler, and that of hashes."""
    from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager

    register = getattr(single_type_kv_cache_manager, "register_all_kvcache_specs", None)
    if register is not None:
        register(config)
    resolve = getattr(kv_cache_utils, "resolve_kv_cache_block_sizes", None)
    if resolve is None:
        return (config.cache_config.block_size,) * 2
    sizes: tuple[int, int] = resolve(kv_cache, config)
    return sizes


def _hasher(config: Any, hash_block_size: int) -> Callable[[Any], Any] | None:
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    if not config.cache_config.enable_prefix_caching:
        return None
    function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(function)
    hasher: Callable[[Any], Any] = get_request_block_hasher(hash_block_size, function)
    return hasher


def _known(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that a function or class of this version takes."""
    names = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values()):
        names = inspect.signature(function.__mro__[1]).parameters
    return {name: value for name, value in arguments.items() if name in names}


def main() -> int:
    """Serves the requests on standard input; returns the exit status of the process."""
    os.environ.update(_ENVIRONMENT)
    return serve(VllmScheduler)


if __name__ == "__main__":
    sys.exit(main())
