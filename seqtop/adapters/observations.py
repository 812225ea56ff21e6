"""Messages from an adapter's half inside an engine to its half outside: cheap plain data.

Request ids are the engine's internal ones. Statuses are the names of vLLM's `RequestStatus`, or the
engine's own. Times are seconds since the epoch, durations are seconds.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import msgspec

Tables: TypeAlias = tuple[list[int], ...]
"""Block ids, one list for each KV-cache group."""

Setting: TypeAlias = bool | int | float | str | None
"""The value of a setting, as in `seqtop.wire.messages`, which is not imported into the engine."""


class Observation(msgspec.Struct, array_like=True, gc=False):
    """The base class of all observations. Those that are sent by themselves have a tag."""


class EngineStarted(Observation, tag="EngineStarted"):
    """The description of an engine whose scheduler has been created."""

    engine: str
    """Software and version, such as `vLLM 0.33.0`."""
    engine_id: str
    model: str
    dtype: str
    device: str
    start_time: float
    block_size: int
    num_gpu_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    policy: str
    """The engine's own policy, or `priority`, `priority_alone`, `preempted_last` or `unknown` for
    the order of its queue."""
    groups: list[str]
    """The kind of each KV-cache group, the main one first; empty if there is only one."""
    tokenizer: str | None
    tokenizer_revision: str | None
    data_parallel_rank: int
    has_random_suffix: bool
    """True if internal ids are the user's ids with 9 characters appended."""
    not_available: dict[str, str] = {}
    """Columns and figures that this engine cannot give, by key, and the reasons."""
    max_loras: int | None = None
    max_num_encoder_input_tokens: int | None = None
    encoder_cache_size: int | None = None
    kv_cache_specs: list[dict[str, Setting]] = []
    """`EngineInfo.kv_cache_specs`."""
    bytes_per_block: int | None = None
    """`EngineInfo.bytes_per_block`."""
    scheduler_settings: dict[str, Setting] = {}
    """Further settings that the scheduler's decisions depend on, by the engine's names."""
    num_reserved_blocks: int = 1
    """The first blocks of the pool, which no request can hold, such as vLLM's null block."""
    num_cpu_blocks: int | None = None
    """Blocks in host memory to swap to; `None` without any."""
    reports_cached_blocks: bool = False
    """True if `BlocksCached` and `BlocksUncached` say which blocks are in the prefix cache."""
    stops_outside: bool = False
    """True if a front end looks for stop strings, and not the scheduler."""


class RequestEnded(Observation, tag="RequestEnded"):
    """A request that the scheduler freed. It is sent by itself if that was not in a step."""

    request_id: str
    status: str
    stop_reason: int | str | None
    num_computed_tokens: int
    time: float
    tables: Tables | None = None
    """The blocks that a KV connector still holds for it; `None` if they were freed."""
    num_schedule_calls: int = 0
    """Calls of `schedule` before."""


class Arrived(Observation, tag="Arrived"):
    """A request that was added to the scheduler."""

    request_id: str
    arrival_time: float
    status: str
    priority: int
    num_prompt_tokens: int
    prompt_token_ids: list[int]
    """Empty for a prompt of embeddings."""
    sampling_params: dict[str, Any] | None
    lora: str = ""
    """The name of its LoRA adapter; empty without one."""
    parent_request_id: str = ""
    """The id of the request of which it is a sample; empty for none, or if that is unknown."""
    eos_token_id: int | None = None
    cache_salt: str = ""
    """A digest of its cache salt; empty without one."""
    traceparent: str = ""
    """W3C's header of this name; empty if vLLM does not trace, or the client sent none."""
    transfer_id: str = ""
    """The id of the transfer between prefill and decode instance; empty without one."""
    num_encoder_inputs: int = 0
    num_schedule_calls: int | None = None
    """Calls of `schedule` before it was added; `None` if that is unknown."""
    before: RequestEnded | None = None
    """The end, since the last step, of an earlier request with the same id."""


class StreamingInput(Observation, tag="StreamingInput"):
    """More input of a streaming session: its prompt now ends with it."""

    request_id: str
    time: float
    prompt_token_ids: list[int]
    """The whole prompt, which includes the output before it."""
    num_computed_tokens: int
    arrival_time: float | None = None
    """The arrival time of the session, which some versions renew with each input."""


class Preempted(Observation):
    """A request that lost its blocks."""

    request_id: str
    num_lost_tokens: int
    for_request_id: str | None
    status: str = "PREEMPTED"


class SwappedOut(Observation):
    """A request whose blocks were copied to host memory."""

    request_id: str
    num_computed_tokens: int
    blocks: list[tuple[int, int]]
    """The block of the device, and the one in host memory, of each block of its main table."""


class SwappedIn(Observation):
    """A request whose blocks were copied back from host memory."""

    request_id: str
    blocks: list[tuple[int, int]]
    """The block in host memory, and the one of the device."""
    tables: Tables


class Admitted(Observation):
    """A request that changed from waiting to running, for the first time or again."""

    request_id: str
    num_cached_tokens: int
    """Computed tokens at the start."""
    tables: Tables
    num_external_tokens: int = 0
    """The part of `num_cached_tokens` that a KV connector loaded."""
    fork_time: float | None = None
    """The time at which it was forked from another request, with whose blocks it starts; `None` for
    a request that the scheduler admitted."""


class Scheduled(Observation):
    """One call of `schedule`."""

    start_time: float
    duration: float = 0.0
    preempted: list[Preempted] = []
    admitted: list[Admitted] = []
    appended: list[tuple[str, Tables]] = []
    """New blocks of requests that were running already."""
    wait_reasons: list[tuple[str, str]] = []
    """Requests that were left waiting, and the reason, as in `WaitReason.cause`."""
    num_encoder_tokens: int | None = None
    swapped_out: list[SwappedOut] = []
    swapped_in: list[SwappedIn] = []


class Controlled(Observation):
    """A call from outside that changes what the scheduler may do, as `ControlCall`."""

    name: str
    argument: bool | str
    num_schedule_calls: int


class WaitingRequest(Observation):
    """A waiting request whose status, computed tokens or blocks have changed."""

    request_id: str
    status: str
    num_computed_tokens: int
    tables: Tables


class BlocksStored(Observation, tag="BlocksStored"):
    """Full blocks of a request that were added to the prefix cache: neighbours in its table."""

    request_id: str | None
    """None, here and below, if another request has the id now."""
    position: int
    """The logical position of the first one."""
    hashes: list[bytes]
    """The beginning of the hash of each block, here and below."""


class BlocksEvicted(Observation, tag="BlocksEvicted"):
    """Contents that left the prefix cache."""

    request_id: str | None
    """The request that got the blocks; `None` if that is unknown."""
    hashes: list[bytes]


class LookedUp(Observation, tag="LookedUp"):
    """The lookup in the prefix cache with which a request was admitted."""

    request_id: str | None
    num_tokens: int
    num_hit_tokens: int
    hashes: list[bytes]
    """The hashes of the full blocks after the hits, as far as they can be found. The list may be
    cut."""
    is_cacheable: bool
    """False if all tokens have to be computed."""


class CacheReset(Observation, tag="CacheReset"):
    """The prefix cache was emptied."""


class BlocksCached(Observation, tag="BlocksCached"):
    """Full blocks that were added to a prefix cache: neighbours in the table of a request."""

    request_id: str
    """The request that computed them; empty if that is unknown."""
    position: int
    """The logical position of the first one."""
    blocks: list[int]


class BlocksUncached(Observation, tag="BlocksUncached"):
    """Blocks whose content left the prefix cache."""

    blocks: list[int]


AnyCacheEvent: TypeAlias = (
    BlocksStored | BlocksEvicted | LookedUp | CacheReset | BlocksCached | BlocksUncached
)


class Counts(Observation):
    """Numbers of requests, blocks and tokens at one time."""

    num_waiting: int
    num_free_blocks: int
    """Blocks in no table."""
    num_cached_blocks: int | None
    """The part of `num_free_blocks` that the prefix cache can still reuse; `None` if unknown."""
    num_prefix_queries: int
    """Tokens looked up in the prefix cache since the observer exists, as the engine counts them."""
    num_prefix_hits: int
    """The part of `num_prefix_queries` that was found."""
    num_free_cpu_blocks: int | None = None
    """Free blocks in host memory; `None` without any."""
    num_late_blocks: int = 0
    """Blocks in no table that are freed when the steps in flight have ended."""


class Stepped(Observation, tag="Stepped"):
    """One call of `update_from_output`, and everything since the previous call."""

    scheduled: list[Scheduled]
    """Calls of `schedule` since then. With async scheduling the next step's call is included."""
    start_time: float
    """The time at which the step that produced the outputs was scheduled; if that was before the
    engine was observed, the time since which it is."""
    scheduler_time: float | None
    """Seconds of scheduling; here and below, `None` if the engine was not observed before."""
    execute_time: float | None
    time: float
    num_scheduled_tokens: dict[str, int] | None
    """The tokens of each request that ran, in the order of scheduling; `None` if it was one token
    for each request of the step before."""
    output_ids: list[str] | None
    """The requests that `output_token_ids` belongs to; `None` for all that ran, in that
    order."""
    output_token_ids: list[list[int]]
    running: list[str] | None
    """The running queue in order; `None` if it is unchanged."""
    num_computed_tokens: list[int]
    """The computed tokens of each request in `running`."""
    counts: Counts
    ended: list[RequestEnded] = []
    """Finished requests, including those aborted between steps."""
    released: list[str] = []
    """Requests that ended before, and whose blocks the KV connector has released."""
    tables: list[tuple[str, Tables]] = []
    """Whole tables in which blocks were freed, of models that do so."""
    waiting: list[WaitingRequest] = []
    """Waiting requests that wait for more than their turn, or no longer do."""
    num_draft_tokens: dict[str, int] = {}
    cache_events: list[AnyCacheEvent] = []
    """The operations of the prefix cache since the previous call, in order."""
    cuda_graph: tuple[str, int, int] | None = None
    """The mode of the CUDA graph, the tokens of the step, and the tokens with padding."""
    num_encoder_tokens: int | None = None
    """Encoder tokens of the step; `None` for a model without an encoder."""
    num_used_encoder_slots: int | None = None
    num_schedule_calls: int = 0
    """Calls of `schedule` so far."""
    controls: list[Controlled] = []
    """Calls from outside since the previous one."""
    running_statuses: dict[str, str] = {}
    """The engine's own statuses of running requests that are in no batch."""


class CurrentRequest(Observation):
    """The current state of one request."""

    arrived: Arrived
    num_computed_tokens: int
    output_token_ids: list[int]
    tables: Tables
    is_running: bool
    was_scheduled: bool
    """True if it has been admitted before."""
    is_swapped: bool = False
    """True if its blocks are in host memory."""


class AllRequests(Observation, tag="AllRequests"):
    """The current state of all requests, for a publisher that lacks earlier observations."""

    time: float
    requests: list[CurrentRequest]
    """The running ones in their order, then the waiting ones in the order of the queue."""
    counts: Counts
    num_lost: int = 0
    """Observations that were dropped before this one."""
    cached: list[BlocksCached] = []
    """The prefix cache, of engines that report its content."""


class EngineStopping(Observation, tag="EngineStopping"):
    """The shutdown of the scheduler, or of the adapter after an error."""

    time: float
    reason: str
    failed: bool = False
    """True if the engine cannot continue."""


AnyObservation: TypeAlias = (
    EngineStarted | Arrived | RequestEnded | StreamingInput | Stepped | AllRequests | EngineStopping
)


class ObservationSink(Protocol):
    """The destination of observations."""

    @property
    def wants_all_requests(self) -> bool:
        """True once after observations were lost: then `AllRequests` is needed."""

    def send(self, observation: AnyObservation) -> None:
        """Sends an observation without waiting."""
