"""The messages of the seqtop protocol, version 2 (`docs/protocol.md` is its specification).

Every message is an array-like msgspec struct whose first element is its tag. Fields are only
ever appended, and always with a default, so an old viewer reads a newer engine and the reverse
(msgspec's schema-evolution rules). Times are wall-clock seconds since the epoch, durations are
seconds, lengths are tokens unless a name says blocks.

`None` in an optional figure means "this engine has no such thing", which is not zero.
"""

from typing import Literal, TypeAlias

import msgspec

from seqtop.sequence import (
    ExecuteModelRequest,
    Logprob,
    PoolingParams,
    RequestMetrics,
    SamplingParams,
    SequenceStatus,
)
from seqtop.sequence.privacy import Masked, Private, Public

PROTOCOL_VERSION = 2
"""The only version that is sent and understood."""

PreemptionMode: TypeAlias = Literal["recompute", "swap"]
QueueOrder: TypeAlias = Literal["preempted_first", "fcfs", "priority"]
WaitCause: TypeAlias = Literal["no_blocks", "token_budget", "seq_limit"]


class Message(msgspec.Struct, array_like=True, kw_only=True):
    """Base of everything that travels; subclasses set their tag."""


class EngineInfo(Message, tag="EngineInfo"):
    """Who is speaking: sent when the engine starts, and part of every snapshot."""

    protocol_version: Public[int]
    engine_id: Public[str]
    """The name a user gave this engine; several engines in one viewer are told apart by it."""
    incarnation: Public[str]
    """A random id that changes each time the engine starts."""
    engine: Public[str]
    """Software and version, `engine_stub 0.1.0` say."""
    model: Public[str]
    dtype: Public[str]
    device: Public[str]
    start_time: Public[float]
    block_size: Public[int]
    """Slots (tokens) per KV-cache block."""
    num_gpu_blocks: Public[int]
    """Blocks of the device's KV pool; vLLM's name, also where the device is a CPU."""
    num_cpu_blocks: Public[int | None]
    """Blocks in host memory to swap to."""
    max_num_seqs: Public[int]
    max_num_batched_tokens: Public[int]
    """The token budget of one step."""
    max_model_len: Public[int]
    enable_chunked_prefill: Public[bool]
    enable_prefix_caching: Public[bool]
    preemption_mode: Public[PreemptionMode]
    control: Public[bool] = False
    """Whether this engine accepts `Submit` and `Abort`."""
    redacted: Public[bool] = False
    """Whether text and token ids are kept off the wire."""
    heartbeat_interval: Public[float] = 1.0
    """Seconds between heartbeats while nothing else is sent."""
    num_reserved_blocks: Public[int] = 0
    """The pool's first blocks, where no sequence is ever given them: vLLM V1 has a null block
    that stands in a table for a block needed no more."""
    queue_order: Public[QueueOrder] = "preempted_first"
    """Who is next in the waiting queue: what has been preempted, then by priority and arrival;
    or (`fcfs`) the latest arrival is last and the latest preempted is first; or (`priority`) by
    priority and arrival alone."""
    tokenizer: Public[str | None] = None
    """Where the model's tokenizer is to be found: a folder, or an id of the Hugging Face hub."""
    data_parallel_rank: Public[int | None] = None
    """Which of several engines that serve one model side by side this is."""
    kv_cache_groups: Public[list[str]] = []
    """What kind of layers each block table of a sequence is for, where it has several."""


class RequestArrived(Message, tag="RequestArrived"):
    """A request entered the waiting queue; nothing of it is scheduled yet."""

    request_id: Public[str]
    arrival_time: Public[float]
    seq_ids: Public[list[int]]
    num_prompt_tokens: Public[int]
    prompt: Private[str | None] = None
    prompt_token_ids: Private[list[int]] = []
    sampling_params: Public[SamplingParams | None] = None
    pooling_params: Public[PoolingParams | None] = None
    priority: Public[int] = 0
    metrics: Public[RequestMetrics | None] = None
    """Where they start from; by default all but the arrival time is unknown."""
    engine_status: Public[str] = ""
    """What it waits for, by the engine's own name, where that is not just its turn."""


class SequenceUpdate(Message):
    """What one step changed about one sequence. State is that *after* the step."""

    seq_id: Public[int]
    status: Public[SequenceStatus]
    num_computed_tokens: Public[int]
    num_cached_tokens: Public[int] = 0
    new_token_ids: Masked[list[int]] = []
    """Tokens sampled by this step, the request's last one included (vLLM's deltas never
    carry that one)."""
    new_logprobs: Private[list[float]] = []
    """Log-probability of each of `new_token_ids`."""
    text_delta: Private[str] = ""
    new_blocks: Public[list[int]] = []
    """Physical blocks appended to the block table."""
    block_table: Public[list[int] | None] = None
    """The whole block table, where appending does not describe the change."""
    stop_reason: Private[int | str | None] = None
    top_logprobs: Private[list[dict[int, Logprob]] | None] = None
    """For each of `new_token_ids` the candidates a request asked to see (`logprobs=n`)."""
    parent_seq_id: Public[int | None] = None
    """The sequence this one was forked from; sent once, with `request_id` and `block_table`. It
    begins with the output that its parent has before the parent's own update."""
    request_id: Public[str | None] = None
    engine_status: Public[str] = ""
    """The engine's own name for the status where it tells more than `status` does:
    `WAITING_FOR_REMOTE_KVS`, say."""
    num_draft_tokens: Public[int | None] = None
    """Speculative tokens that this step verified; `None` where none were drafted."""
    num_accepted_tokens: Public[int | None] = None
    """Of those, tokens that are now part of the output."""
    group_block_tables: Public[list[list[int]] | None] = None
    """The whole tables of all KV-cache groups but the first, where they have changed."""
    is_removed: Public[bool] = False
    """Whether its request goes on without this sequence: a beam that others have outdone. Viewers
    forget it."""


class Preemption(Message):
    """A running request lost its place in this step."""

    request_id: Public[str]
    mode: Public[PreemptionMode]
    num_lost_tokens: Public[int]
    """Computed tokens that must be computed again (0 for a swap)."""
    for_request_id: Public[str | None] = None
    """The request whose need for blocks caused it."""


class WaitReason(Message):
    """Why the scheduler, having looked at this waiting request, left it waiting.

    A waiting request that a step does not name waits behind one that it does.
    """

    request_id: Public[str]
    cause: Public[WaitCause]
    num_missing: Public[int] = 0
    """Blocks missing for `no_blocks`, tokens of budget missing for `token_budget`, places missing
    for `seq_limit`; 0 if that is not known."""


class StepStats(Message):
    """The engine's figures at the end of a step."""

    num_running: Public[int]
    """Sequences, not requests, here and below."""
    num_waiting: Public[int]
    num_used_blocks: Public[int]
    """Blocks in some block table."""
    num_free_blocks: Public[int]
    """Blocks that hold nothing."""
    num_cached_blocks: Public[int]
    """Blocks in no table whose content the prefix cache can still reuse."""
    num_prefill_tokens: Public[int]
    """Prompt tokens this step computed."""
    num_decode_tokens: Public[int]
    prefix_cache_queries: Public[int]
    """Prompt tokens looked up in the prefix cache since the engine started."""
    prefix_cache_hits: Public[int]
    """Of those, tokens found."""
    num_preemptions: Public[int]
    """Preemptions since the engine started."""
    scheduler_time: Public[float]
    model_forward_time: Public[float | None]
    model_execute_time: Public[float | None]
    """Forward pass, sampling and everything between: at least `model_forward_time`."""
    num_swapped: Public[int | None] = None
    num_free_cpu_blocks: Public[int | None] = None


class CachedBlocks(Message):
    """Full, computed blocks that the prefix cache has come to know: neighbours in one table."""

    request_id: Public[str]
    """Whose tokens they hold."""
    seq_id: Public[int]
    position: Public[int]
    """The logical position of the first of `blocks` in the table of that sequence."""
    blocks: Public[list[int]]


class Decodes(Message):
    """Sequences that a step took one token further and did nothing else to, a place in each column.

    Such a sequence is RUNNING before the step and after it; the step computed one token of it and
    sampled one. It stands for a `SequenceUpdate` and a delta of its request that are sent for it
    otherwise (`docs/protocol.md` has them field by field), and there is neither.

    Raises:
        ValueError: The columns are not of one length.
    """

    seq_ids: Public[list[int]]
    new_token_ids: Masked[list[int]]
    """The token that was sampled."""
    text_deltas: Masked[list[str]]
    new_logprobs: Private[list[float]] = []
    """The log-probability of each token; empty where an engine has none."""
    new_blocks: Public[dict[int, int]] = {}
    """By sequence id the physical block appended to its table, of those that were given one."""

    def __post_init__(self) -> None:
        num = len(self.seq_ids)
        if not num == len(self.new_token_ids) == len(self.text_deltas):
            raise ValueError("the columns of decodes are not of one length")
        if self.new_logprobs and len(self.new_logprobs) != num:
            raise ValueError("the columns of decodes are not of one length")


class Step(Message, tag="Step"):
    """One iteration of the engine: what it was asked to run and what came of it.

    `execute` is the `ExecuteModelRequest` as vLLM encodes it, except that deltas may leave
    `block_tables` empty: tables travel in `sequences` as changes, which is a few bytes where
    vLLM resends every block. Fulls always carry theirs.

    Each request in `execute` has `scheduler_time`, `model_forward_time` and
    `model_execute_time` of `stats` added to its metrics, and `last_token_time` set to `time` if
    it sampled; `metrics` names only the requests whose metrics changed in another way.
    """

    step: Public[int]
    start_time: Public[float]
    """When scheduling began."""
    time: Public[float]
    """When the outputs had been processed."""
    execute: Public[ExecuteModelRequest]
    sequences: Public[list[SequenceUpdate]]
    stats: Public[StepStats]
    metrics: Public[dict[str, RequestMetrics]] = {}
    preemptions: Public[list[Preemption]] = []
    wait_reasons: Public[list[WaitReason]] = []
    newly_cached_blocks: Public[list[CachedBlocks] | None] = None
    """Blocks that the prefix cache knows since this step; `None` from engines that do not tell
    which it knows."""
    uncached_blocks: Public[list[int]] = []
    """Blocks that it has forgotten. They come first: such a block may be known anew at once."""
    decodes: Public[Decodes | None] = None
    """Sequences of which there is no more to say than the token that each has got: they are
    neither in `execute` nor in `sequences`."""


class RequestFinished(Message, tag="RequestFinished"):
    """A request left the engine; sent after the step that ended it."""

    request_id: Public[str]
    time: Public[float]
    status: Public[SequenceStatus]
    """The end of every sequence of the request that has not reached one of its own."""
    metrics: Public[RequestMetrics]
    text_lengths: Private[list[int]] = []
    """Characters of each sequence's whole text, in the order of the request's sequences: what the
    text deltas must add up to. Empty where an engine does not know."""
    seq_ids: Public[list[int]] = []
    """The request's sequences, best first where they have a rank; others are removed. Empty where
    nothing is to be changed."""


class Heartbeat(Message, tag="Heartbeat"):
    """Sent while nothing else is, so that silence means trouble."""

    time: Public[float]
    step: Public[int]


class EngineStopped(Message, tag="EngineStopped"):
    """The engine says goodbye; nothing follows under this incarnation."""

    time: Public[float]
    reason: Public[str] = ""


Event: TypeAlias = EngineInfo | RequestArrived | Step | RequestFinished | Heartbeat | EngineStopped


class InFlight(Message, tag="InFlight"):
    """Everything unfinished, whole; what is not named has ended.

    Not part of the stream: an engine's own side makes the state good with it that snapshots are
    taken of, after messages were lost before they could be numbered.
    """

    time: Public[float]
    step: Public[int]
    """The last step before; -1 if there was none."""
    stats: Public[StepStats | None]
    """Of that step."""
    requests: Public[list[RequestArrived]]
    """In order of arrival."""
    sequences: Public[list[SequenceUpdate]]
    """Each sequence as if one update had brought all there is of it; tables in `block_table`."""
    cached_blocks: Public[list[CachedBlocks] | None] = None
    """All blocks that the prefix cache knows."""


class SnapshotRequest(Message, tag="SnapshotRequest"):
    """Ask for the whole state; answered by `Snapshot`."""

    protocol_version: int = PROTOCOL_VERSION


class Submit(Message, tag="Submit"):
    """Ask the engine to run a prompt; answered by `Accepted` or `Refused`."""

    prompt: str
    sampling_params: SamplingParams
    priority: int = 0


class Abort(Message, tag="Abort"):
    """Ask the engine to end a request; answered by `Accepted` or `Refused`."""

    request_id: str


Command: TypeAlias = SnapshotRequest | Submit | Abort


class Snapshot(Message, tag="Snapshot"):
    """The state after message `sequence_number` of `incarnation`."""

    protocol_version: int
    incarnation: str
    sequence_number: int
    state: msgspec.Raw
    """An encoded `seqtop.state.EngineState`."""
    has_parts: bool = False
    """Whether more of its dictionaries' entries follow, in `SnapshotPart`s."""


class SnapshotPart(Message, tag="SnapshotPart"):
    """More of the snapshot before it. What it is, is in a frame of its own behind this message: a
    map, to be merged into the state."""

    index: int
    """From 0 on."""
    is_last: bool
    """Whether the state is whole now."""


class Accepted(Message, tag="Accepted"):
    request_id: str


class Refused(Message, tag="Refused"):
    error: str
    """One sentence for the user."""


Reply: TypeAlias = Snapshot | SnapshotPart | Accepted | Refused
