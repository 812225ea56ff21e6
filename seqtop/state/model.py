"""The state of an engine as plain data: the reducer writes it and every view reads it.

Everything here is a msgspec struct. So a state can be encoded whole (a snapshot) and compared field
by field. It is a tree: what exists once per sequence or request is not tracked by Python's cyclic
garbage collector (`gc=False`), which would look at hundreds of thousands of objects and free none.
Values that exist once per token are in arrays (`seqtop.wire.arrays`), which are copied whole.
"""

from functools import partial

import msgspec

from seqtop.sequence import (
    PoolingParams,
    RequestMetrics,
    SamplingParams,
    SequenceStatus,
)
from seqtop.sequence.names import Name
from seqtop.sequence.privacy import Masked, Private, Public
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.messages import (
    EngineInfo,
    MissCause,
    NotPublished,
    PreemptionMode,
    PrefixMiss,
    StepStats,
    WaitReason,
)
from seqtop.wire.snapshot import BlockedTimes, Limits, Span, StepCosts, WaitTimes

DEFAULT_MAX_FINISHED = 1_000
"""Finished requests in a state, unless a viewer sets another number."""
MAX_SEQUENCES = 2**18
"""Sequences in a state, in addition to one for each finished request that it may have."""
MAX_SEQUENCES_OF_REQUEST = 1_024
MAX_CACHED_BLOCKS = 2**20


class SequenceState(msgspec.Struct, omit_defaults=True, gc=False):
    """A sequence after the last applied step."""

    seq_id: Public[int]
    request_id: Public[Name]
    status: Public[SequenceStatus] = SequenceStatus.WAITING
    num_prompt_tokens: Public[int] = 0
    num_computed_tokens: Public[int] = 0
    """Tokens whose keys and values are in the KV cache."""
    num_cached_tokens: Public[int] = 0
    """The computed tokens that were found in the prefix cache, when it was last admitted.

    After a preemption these may be tokens of its own output."""
    num_prompt_hits: Public[int] = 0
    """The tokens of the prompt that were found in the prefix cache before any preemption."""
    output_token_ids: Masked[Ints] = msgspec.field(default_factory=partial(Ints, "i"))
    output_logprobs: Private[Floats] = msgspec.field(default_factory=partial(Floats, "f"))
    top_logprobs: Private[TopLogprobs | None] = None
    """Candidates of the output tokens, where the request asked for log probabilities."""
    cumulative_logprob: Private[float] = 0.0
    text: Private[str] = ""
    last_delta_length: Private[int] = 0
    """Characters that the newest delta added to `text`."""
    # No other object has this list, which grows in place: the collector would look at each new one.
    block_table: Public[list[int]] = []
    """Physical blocks on the device, in logical order."""
    stop_reason: Private[int | str | None] = None
    parent_seq_id: Public[int | None] = None
    last_step: Public[int] = -1
    """The last step that changed this sequence."""
    engine_status: Public[Name] = ""
    """The engine's own name for the status, where it makes finer distinctions."""
    num_draft_tokens: Public[int | None] = None
    """Speculative tokens verified so far; `None` without speculative decoding."""
    num_accepted_tokens: Public[int | None] = None
    """The draft tokens that became output."""
    group_block_tables: Public[list[list[int]]] = []
    """Block tables of the second and later KV-cache groups; the first has `block_table`."""
    host_table: Public[list[int]] = []
    """Blocks in host memory that hold a swapped-out sequence, in logical order."""
    fork_length: Public[int | None] = None
    """Tokens of prompt and output shared with the parent at the fork."""
    num_external_tokens: Public[int] = 0
    """The part of `num_cached_tokens` that a KV connector loaded from elsewhere."""
    text_lengths: Masked[Ints] = msgspec.field(default_factory=partial(Ints, "b"))
    """Characters that each output token added to `text`.

    Tokens that arrived together have -1, except the last of them, which has the sum. Lengths
    take one byte each, which offsets would not.
    """
    prefix_misses: Public[list[PrefixMiss] | None] = None
    """The tokens that were not in the prefix cache when it was last admitted, by cause and in
    order; `None` before, and where the engine does not report them."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens together."""
        return self.num_prompt_tokens + len(self.output_token_ids)


class CachedBlock(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A block in the prefix cache, identified by the sequence that wrote it."""

    request_id: Public[Name]
    seq_id: Public[int]
    position: Public[int]
    """The logical position of the block in the table of that sequence."""


class RequestState(msgspec.Struct, omit_defaults=True, gc=False):
    """A request: its parameters, its progress and the ids of its sequences."""

    request_id: Public[Name]
    metrics: Public[RequestMetrics]
    seq_ids: Public[list[int]]
    is_announced: Public[bool] = False
    """True if a `RequestArrived` announced it: its output comes in updates, otherwise in deltas."""
    num_prompt_tokens: Public[int] = 0
    prompt: Private[str | None] = None
    prompt_token_ids: Private[Ints] = msgspec.field(default_factory=partial(Ints, "i"))
    sampling_params: Public[SamplingParams | None] = None
    pooling_params: Public[PoolingParams | None] = None
    priority: Public[int] = 0
    spans: Public[list[Span]] = []
    """Phases of the request, oldest first; the last one may still be open."""
    token_chunk_size: Public[int] = 0
    """Tokens per sequence in the last step that scheduled the request."""
    num_scheduled_steps: Public[int] = 0
    num_preemptions: Public[int] = 0
    num_lost_tokens: Public[int] = 0
    """Computed tokens that preemptions discarded."""
    last_preemption_mode: Public[PreemptionMode | None] = None
    preempted_for: Public[Name | None] = None
    """Id of the request that the last preemption made room for."""
    wait_reason: Public[WaitReason | None] = None
    """The reason that the last step gave for leaving this request waiting."""
    wait: Public[WaitTimes] = WaitTimes()
    harm: Public[float | None] = None
    """Seconds that others waited for what the request held, or computed again for it; `None` if
    that is unknown (`seqtop.state.harm`)."""
    harm_estimated: Public[float] = 0.0
    """Seconds by which its tokens made the steps of others longer, as estimated."""
    finish_reason: Public[Name | None] = None
    """`stop`, `length` or `abort`, as in the OpenAI API; `None` while unfinished."""
    preemption_steps: Public[list[int]] = []
    queue_turn: Public[int] = 0
    """Sort key of the queue of an engine whose `queue_order` is `fcfs` or `preempted_last`.

    Each arrival takes the next positive number. Each preemption does so, too, in
    `preempted_last`, and otherwise takes the next negative one.
    """
    renewed_arrival_time: Public[float | None] = None
    """The arrival of a streaming session's last input, if the engine orders its queue by that."""
    lora: Public[Name] = ""
    """The name of the LoRA adapter; empty without one."""
    cache_salt: Private[Name] = ""
    """A digest of the cache salt; empty without one."""
    parent_request_id: Public[Name] = ""
    """The id of the request of which this is a part; empty if it is whole."""
    traceparent: Public[Name] = ""
    """The span of the client, as W3C's header of this name has it; empty if it is unknown."""
    transfer_id: Public[Name] = ""
    """The id of the transfer of its KV cache to or from another engine, which has a request with
    the same id; empty without one."""
    num_encoder_inputs: Public[int] = 0
    """Inputs of an encoder, such as images."""
    is_prompt_partial: Public[bool] = False
    """True if the prompt may be longer, as long as there is no output."""

    def ended_after(self, time: float) -> bool:
        """Returns whether the request ended after `time`, in epoch seconds.

        It is then rightly in the batch of a step that was scheduled at that time.
        """
        end = self.metrics.finished_time
        return end is not None and end > time


class EngineData(msgspec.Struct):
    """All data about one engine after the events applied so far.

    `seqtop.state.EngineState` adds `apply`, which is the only writer.
    """

    info: Public[EngineInfo | None] = None
    step: Public[int] = -1
    """Number of the last applied step; -1 before the first."""
    time: Public[float] = 0.0
    """The engine's clock at the last event, epoch seconds."""
    stats: Public[StepStats | None] = None
    requests: Public[dict[Name, RequestState]] = {}
    """Unfinished and recently finished requests, in order of arrival."""
    sequences: Public[dict[int, SequenceState]] = {}
    finished: Public[list[Name]] = []
    """Ids of the finished requests in `requests`, in the order in which they finished."""
    max_finished: Public[int] = DEFAULT_MAX_FINISHED
    keeps_candidates: Public[bool] = True
    """False to leave out `top_logprobs`: packing them is a tenth of what applying a step takes."""
    num_by_status: Public[list[int]] = msgspec.field(
        default_factory=lambda: [0] * len(SequenceStatus)
    )
    """Number of sequences in `sequences` for each `SequenceStatus`."""
    num_output_tokens: Public[int] = 0
    """Tokens sampled since the first applied step."""
    num_steps_seen: Public[int] = 0
    stopped: Public[str | None] = None
    """The reason why the engine stopped; `None` while it runs."""
    num_anomalies: Public[int] = 0
    """Events that contradicted the state."""
    last_anomaly: Public[str | None] = None
    num_prefill_tokens: Public[int] = 0
    """Prompt tokens computed since the first applied step."""
    num_finished: Public[int] = 0
    """Requests finished since the first applied event, whether or not they are still here."""
    wait_reason_ids: Public[list[Name]] = []
    """Ids of the requests that the last step gave a reason to wait."""
    blocked: Public[BlockedTimes] = BlockedTimes()
    step_costs: Public[StepCosts] = StepCosts()
    holders: Public[dict[Name, bool]] = {}
    """Ids of the requests that hold blocks or sequence slots, ended ones included
    (`seqtop.state.holdings`)."""
    in_queue: Public[dict[Name, bool]] = {}
    """Ids of the requests that wait for their turn (`seqtop.state.waits`)."""
    num_queued: Public[int] = 0
    """Arrivals and preemptions so far, each of which put a request into the queue."""
    cached_blocks: Public[dict[int, CachedBlock] | None] = None
    """The blocks in the prefix cache by number, whether or not a block table names them.

    `None` where the engine does not report the content of its prefix cache.
    """
    num_missed_tokens: Public[dict[MissCause, int]] = {}
    """Tokens that were not in the prefix cache at admissions since the first applied step, by
    cause."""
    num_drafted: Public[list[int]] = []
    """Draft tokens verified since the first applied step, by position in the draft."""
    num_accepted: Public[list[int]] = []
    """The part of `num_drafted` that became output."""
    num_parked: Public[dict[Name, int]] = {}
    """Waiting sequences by the engine's own name for what they wait for instead of their turn."""
    limits: Public[Limits] = Limits()
    not_published: Public[NotPublished | None] = None
    """The last message that the engine's publisher could not make; `None` if it could make all."""

    def report_anomaly(self, text: str) -> None:
        """Counts an event that contradicts the state, and stores `text` as the last one."""
        self.num_anomalies += 1
        self.last_anomaly = text
