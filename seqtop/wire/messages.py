"""The messages of the seqtop protocol, version 3, specified in `docs/protocol.md`.

Every message is an array-like msgspec struct whose first element is its tag. Fields are only ever
appended, and always with a default, so that old viewers read newer engines and the reverse
(msgspec's schema-evolution rules). Times are seconds since the epoch, durations are seconds,
lengths are tokens unless the name says blocks. `None` in an optional figure means that the engine
has no such figure. Each field declares its privacy, see `seqtop.sequence.privacy`.
"""

from functools import partial
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
from seqtop.sequence.names import Name
from seqtop.sequence.privacy import Masked, Private, Public
from seqtop.wire.arrays import Ints

PROTOCOL_VERSION = 3
"""The only version that is sent and decoded. The topic of each message has it."""

PreemptionMode: TypeAlias = Literal["recompute", "swap"]
QueueOrder: TypeAlias = Literal["priority", "priority_alone", "fcfs", "preempted_last", "unknown"]
WaitCause: TypeAlias = Literal[
    "no_blocks", "token_budget", "seq_limit", "paused", "lora_slots", "unknown", "reserved_blocks"
]
"""The scheduler's reason to leave a request waiting. `unknown` says that it gave none that the
engine's publisher can observe."""
MissCause: TypeAlias = Literal[
    "new_tokens",
    "evicted",
    "not_stored",
    "extra_keys",
    "broken_prefix",
    "partial_block",
    "not_cacheable",
    "unknown",
]
"""The reason why tokens were not found in the prefix cache, as `docs/protocol.md` defines them."""


Setting: TypeAlias = bool | int | float | Name | None
"""The value of a setting of an engine."""


class Message(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """The base class of all messages. Subclasses that are sent by themselves set a tag."""


class EngineInfo(Message, tag="EngineInfo"):
    """The description of an engine, sent when it starts and in every snapshot."""

    engine_id: Public[Name]
    """The user's name for the engine, which distinguishes engines in one viewer."""
    incarnation: Public[Name]
    """A random id, new with each start of the engine."""
    engine: Public[Name]
    """Software and version, such as `engine_stub 0.1.0`."""
    model: Public[Name]
    """The model's name or directory."""
    dtype: Public[Name]
    """The type of weights and activations, such as `bfloat16`."""
    device: Public[Name]
    """The device that runs the model, such as `cuda` or `cpu`."""
    start_time: Public[float]
    """The time of the engine's start."""
    block_size: Public[int]
    """Slots (tokens) per KV-cache block."""
    num_gpu_blocks: Public[int]
    """Blocks of the device's KV pool. The name is vLLM's, also for a CPU."""
    num_cpu_blocks: Public[int | None]
    """Blocks in host memory for swapping."""
    max_num_seqs: Public[int]
    """The most sequences that run in one step."""
    max_num_batched_tokens: Public[int | None]
    """The token budget of one step; `None` if the engine does not tell it."""
    max_model_len: Public[int]
    """The most tokens of a sequence, prompt and output."""
    enable_chunked_prefill: Public[bool]
    """True if a prompt may be computed in several steps."""
    enable_prefix_caching: Public[bool]
    """True if blocks of equal prefixes are reused."""
    preemption_mode: Public[PreemptionMode]
    """The mode of preemptions, of which each has its own in `Preemption`."""
    control: Public[bool] = False
    """True if this engine accepts `Submit` and `Abort`."""
    redacted: Public[bool] = False
    """True if text and token ids are removed."""
    heartbeat_interval: Public[float] = 1.0
    """Seconds between heartbeats while nothing else is sent."""
    num_reserved_blocks: Public[int] = 0
    """First blocks of the pool, which no sequence can hold. vLLM V1 has one, its null block, which
    replaces blocks in a table that are no longer needed."""
    queue_order: Public[QueueOrder] = "priority"
    """The order of the waiting queue: by priority, then arrival; or (`fcfs`) by arrival, with the
    latest preempted request first; or (`preempted_last`) by arrival, where a preempted request
    arrives again; or another one (`unknown`). In `fcfs` and `priority`, requests that hold blocks
    come before all others, and in `priority_alone` they do not."""
    tokenizer: Public[Name | None] = None
    """The model's tokenizer: a directory or an id of the Hugging Face hub."""
    data_parallel_rank: Public[int | None] = None
    """The rank among several engines that serve one model together."""
    kv_cache_groups: Public[list[Name]] = []
    """The kind of layers of each block table, if sequences have several."""
    not_available: Public[dict[Name, Name]] = {}
    """Columns and figures that this engine cannot give, by key, and the reason of each.

    A key is that of a column, or one of `seqtop.state.not_available.FIGURES`.
    """
    max_loras: Public[int | None] = None
    """LoRA adapters that may run in one step; `None` for an engine without LoRA."""
    max_num_encoder_input_tokens: Public[int | None] = None
    """Encoder tokens, such as those of images, that one step may compute; `None` for a model
    without an encoder."""
    encoder_cache_size: Public[int | None] = None
    """Encoder tokens whose outputs the encoder cache holds at most."""
    scheduler_settings: Public[dict[Name, Setting]] = {}
    """The engine's other settings that its scheduler's decisions depend on, by its own names."""
    predicted_from: Public[Name] = ""
    """The recording from which `seqtop whatif` predicted this run; empty for a run of an engine."""
    kv_cache_specs: Public[list[dict[Name, Setting]]] = []
    """By KV-cache group, in the engine's order: its `kind`, and further settings by the engine's
    names. Empty if the engine does not describe them. `has_positions` is false if the place of a
    block in its table does not say which tokens it holds, as in a ring."""
    bytes_per_block: Public[int | None] = None
    """Bytes of a block of the device's KV pool, in all layers; `None` if they are unknown."""


class RequestArrived(Message, tag="RequestArrived"):
    """A request that joined the waiting queue. None of it is scheduled yet."""

    request_id: Public[Name]
    """A name that no unfinished request has."""
    arrival_time: Public[float]
    seq_ids: Public[list[int]]
    """Numbers that no other sequence of the incarnation has; later forks have their own."""
    num_prompt_tokens: Public[int]
    prompt: Private[str | None] = None
    """The text of the prompt; `None` if only tokens are known."""
    prompt_token_ids: Private[Ints] = msgspec.field(default_factory=partial(Ints, "i"))
    sampling_params: Public[SamplingParams | None] = None
    """`None` for a pooling request, or if they are unknown."""
    pooling_params: Public[PoolingParams | None] = None
    """`None` for a request that generates."""
    priority: Public[int] = 0
    """Requests with lower values run first."""
    metrics: Public[RequestMetrics | None] = None
    """The initial metrics. By default only the arrival time is known."""
    engine_status: Public[Name] = ""
    """The engine's own name for the status, if the request waits for more than its turn."""
    lora: Public[Name] = ""
    """The name of the request's LoRA adapter; empty without one."""
    parent_request_id: Public[Name] = ""
    """The id of a request that runs as several, if this is one of them, such as a parallel sample.
    The parent itself does not arrive."""
    eos_token_id: Private[int | None] = None
    """The end-of-sequence token; `None` if it does not end the request, or is unknown."""
    cache_salt: Private[Name] = ""
    """A digest of the request's cache salt: it shares cached blocks only with requests of the same
    salt. Empty without one."""
    num_encoder_inputs: Public[int] = 0
    """Inputs of an encoder, such as images."""
    num_schedule_calls: Public[int | None] = None
    """Calls of the scheduler before the request arrived: the first call that could schedule it has
    this number, as its step. `None` if it is the next step."""
    traceparent: Public[Name] = ""
    """The span of the client, as W3C's header of this name has it; empty if it is unknown."""
    transfer_id: Public[Name] = ""
    """The id of the transfer of its KV cache to or from another engine, which has a request with
    the same id; empty without one."""
    is_prompt_partial: Public[bool] = False
    """True if the prompt may be longer: the batch with the first token of the output says how long
    it is."""


class StreamingUpdate(Message, tag="StreamingUpdate"):
    """More input of a streaming session, which joined the waiting queue again.

    The prompt now includes the output so far, in vLLM without its last token. The output is empty
    again. The block table is unchanged.
    """

    request_id: Public[Name]
    time: Public[float]
    num_computed_tokens: Public[int]
    """The computed tokens that are kept."""
    num_prompt_tokens: Public[int]
    """The length of the whole prompt."""
    prompt: Private[str | None] = None
    """The text of the whole prompt."""
    prompt_token_ids: Private[Ints] = msgspec.field(default_factory=partial(Ints, "i"))
    arrival_time: Public[float | None] = None
    """The time by which an engine with priorities orders its queue from now on; `None` for that of
    the request's arrival."""


class PrefixMiss(Message):
    """Consecutive tokens that were not found in the prefix cache, for one reason."""

    cause: Public[MissCause]
    num_tokens: Public[int]
    step: Public[int | None] = None
    """The step of the eviction for `evicted`, of the other admission for `not_stored`, the step
    since which no request had these tokens for `unknown`."""
    request_id: Public[str | None] = None
    """The request that the eviction made room for, or the other one that had these tokens; `None`
    if it is unknown."""


class Chunk(Message):
    """The part of a sequence in the batch of an engine that has no `SequenceGroupMetadata`."""

    num_tokens: Public[int]
    """Tokens by which the sequence advanced."""
    num_computed_tokens: Public[int]
    """Computed tokens before the step."""
    is_prompt: Public[bool] = False
    """True if the chunk is computed as a prompt, or again after a preemption."""


class SequenceUpdate(Message):
    """The changes of one sequence by one step, beside what its metadata or delta says.

    A sequence in the batch of the step is `RUNNING`, and the step computed the tokens of its chunk.
    The update has what that does not say.
    """

    seq_id: Public[int]
    new_token_ids: Masked[list[int]] = []
    """Tokens sampled by this step, including the last one of the request. vLLM's deltas have them
    one step later, and never the last one."""
    text_delta: Private[str] = ""
    """New text. A detokenizer may hold back some of it for a later update."""
    new_blocks: Public[list[int]] = []
    """Physical blocks appended to the block table."""
    new_logprobs: Private[list[float]] = []
    """The log-probability of each of `new_token_ids`."""
    status: Public[SequenceStatus | None] = None
    """The status after the step; `None` if it is `RUNNING` for a sequence in the batch, unchanged
    for any other."""
    num_computed_tokens: Public[int | None] = None
    """The computed tokens after the step; `None` if they have grown by the chunk of a sequence in
    the batch, or are unchanged."""
    num_cached_tokens: Public[int | None] = None
    """The computed tokens that were found in the prefix cache, if this step admitted the sequence;
    `None` otherwise."""
    block_table: Public[list[int] | None] = None
    """The whole block table, if appending does not describe the change."""
    stop_reason: Private[int | str | None] = None
    """The token or the string that ended the sequence, unless it is the end-of-sequence token."""
    top_logprobs: Private[list[dict[int, Logprob]] | None] = None
    """The candidates for each of `new_token_ids`, if the request asked for them (`logprobs=n`)."""
    parent_seq_id: Public[int | None] = None
    """The sequence that this one was forked from; sent once, with `request_id` and `block_table`.
    The fork starts with the output that its parent has before the parent's own update."""
    request_id: Public[Name | None] = None
    """The request of a fork, and of each sequence in a step without `execute`."""
    engine_status: Public[Name] = ""
    """The engine's own name for the status, if it is more specific than `status`, such as
    `WAITING_FOR_REMOTE_KVS`."""
    num_draft_tokens: Public[int | None] = None
    """Speculative tokens that this step verified; `None` without a draft."""
    num_accepted_tokens: Public[int | None] = None
    """The part of `num_draft_tokens` that became output."""
    group_block_tables: Public[list[list[int]] | None] = None
    """The whole tables of all KV-cache groups after the first, if they have changed."""
    is_removed: Public[bool] = False
    """True if the request continues without this sequence, such as a discarded beam. Viewers remove
    the sequence."""
    num_external_tokens: Public[int | None] = None
    """The part of `num_cached_tokens` that a KV connector loaded from elsewhere; `None` with
    `num_cached_tokens`."""
    prefix_misses: Public[list[PrefixMiss] | None] = None
    """The tokens after those that were found in the prefix cache, in order, if this step admitted
    the sequence. After 32 runs of tokens, the others are added up by cause. `None` otherwise, and
    from engines that do not know."""
    chunk: Public[Chunk | None] = None
    """The part of the batch, in a step without `execute`; `None` for a sequence that did not
    run."""


class Preemption(Message):
    """A running request that was preempted in this step."""

    request_id: Public[Name]
    mode: Public[PreemptionMode]
    num_lost_tokens: Public[int]
    """Computed tokens that have to be computed again; 0 for a swap."""
    for_request_id: Public[Name | None] = None
    """The request that needed the blocks."""


class WaitReason(Message):
    """The reason why the scheduler examined a waiting request and left it waiting.

    A waiting request that a step does not name waits behind one that it names.
    """

    request_id: Public[Name]
    cause: Public[WaitCause]
    num_missing: Public[int] = 0
    """Missing blocks for `no_blocks`, tokens of the budget for `token_budget`, sequences for
    `seq_limit`; 0 if unknown."""


class CudaGraph(Message):
    """The use of a CUDA graph by a step, and the tokens of the step with and without padding."""

    mode: Public[Name]
    """vLLM's `CUDAGraphMode`, such as `FULL`, `PIECEWISE` or `NONE`."""
    num_tokens: Public[int]
    """The tokens in the batch."""
    num_padded_tokens: Public[int]
    """The tokens that were computed: `num_tokens` and the padding."""


class StepStats(Message):
    """The engine's figures at the end of a step."""

    num_running: Public[int]
    """Running sequences (not requests)."""
    num_waiting: Public[int]
    """Waiting sequences, including preempted ones."""
    num_used_blocks: Public[int]
    """Blocks in at least one block table."""
    num_free_blocks: Public[int]
    """Blocks without content."""
    num_cached_blocks: Public[int | None]
    """Blocks in no table whose content the prefix cache can reuse. `None` if the engine does not
    count them; `num_free_blocks` then includes them."""
    num_prefill_tokens: Public[int]
    """Prompt tokens this step computed."""
    num_decode_tokens: Public[int]
    """Tokens this step computed that are not of a prompt."""
    prefix_cache_queries: Public[int]
    """Prompt tokens looked up in the prefix cache since the engine started."""
    prefix_cache_hits: Public[int]
    """The part of `prefix_cache_queries` that was found."""
    num_preemptions: Public[int]
    """Preemptions since the engine started."""
    scheduler_time: Public[float | None]
    """The duration of scheduling."""
    model_forward_time: Public[float | None]
    """The duration of the forward pass."""
    model_execute_time: Public[float | None]
    """The duration of forward pass, sampling and everything between."""
    num_swapped: Public[int | None] = None
    """Sequences in host memory; `None` for an engine that does not swap."""
    num_free_cpu_blocks: Public[int | None] = None
    """Free blocks in host memory."""
    num_used_loras: Public[int | None] = None
    """Different LoRA adapters of the running requests; `None` for an engine without LoRA."""
    cuda_graph: Public[CudaGraph | None] = None
    """`None` if the engine does not report it."""
    num_encoder_tokens: Public[int | None] = None
    """Encoder tokens that this step computed; `None` for a model without an encoder."""
    num_used_encoder_slots: Public[int | None] = None
    """Encoder tokens in the encoder cache that a request still needs."""
    paced_time: Public[float] = 0.0
    """The part of the time since the step before in which the engine waited on purpose, to make no
    more steps per second than it was told."""
    num_late_blocks: Public[int] = 0
    """The part of `num_used_blocks` in no block table: blocks of requests that have ended or were
    preempted, which the engine frees when the steps in flight have ended."""


class ControlCall(Message):
    """A call from outside of the engine that changes what its scheduler may do."""

    name: Public[Name]
    """The called function, by its name in vLLM: `reset_prefix_cache` or `set_pause_state`."""
    argument: Public[Setting]
    """True if running requests were preempted for the reset; the state of the pause."""
    num_schedule_calls: Public[int]
    """Calls of the scheduler before it."""


class CachedBlocks(Message):
    """Full, computed blocks that were added to the prefix cache: neighbours in one table."""

    request_id: Public[Name]
    """The request whose tokens they hold; empty if that is unknown."""
    seq_id: Public[int]
    """The sequence that computed them; -1 if that is unknown."""
    position: Public[int]
    """The logical position of the first block in the table of the sequence."""
    blocks: Public[list[int]]
    """The blocks, in logical order."""


class Step(Message, tag="Step"):
    """One iteration of the engine: its input and its results.

    `execute` is the `ExecuteModelRequest` as vLLM encodes it: full metadata or a delta for each
    group in the batch. Deltas may leave `block_tables` empty: `sequences` has the changes of the
    tables, in a few bytes where vLLM resends every block. `seqtop.wire.batch.members` reads who was
    in the batch.

    Viewers add `scheduler_time`, `model_forward_time` and `model_execute_time` of `stats` to the
    metrics of each request in the batch, and set `last_token_time` to `time` if it sampled. If the
    step began before the end of the step before, as asynchronous scheduling does, they do not add
    what was before that end: scheduling comes first, then execution. `metrics` has only the
    requests whose metrics changed in another way.
    """

    step: Public[int]
    """The number of the step, which grows with each step."""
    start_time: Public[float]
    """The start of scheduling."""
    time: Public[float]
    """The end of output processing."""
    execute: Public[ExecuteModelRequest | None]
    """`None` from an engine without `SequenceGroupMetadata`; then updates have a `chunk`."""
    sequences: Public[list[SequenceUpdate]]
    """Changes that the batch does not say, at most one for each sequence. Forks precede parents."""
    stats: Public[StepStats]
    """The figures after the step."""
    metrics: Public[dict[Name, RequestMetrics]] = {}
    """By request id, those that changed in another way than viewers derive."""
    preemptions: Public[list[Preemption]] = []
    """In the order in which the scheduler decided them."""
    wait_reasons: Public[list[WaitReason]] = []
    """Those of the requests that the scheduler examined, in this order."""
    newly_cached_blocks: Public[list[CachedBlocks] | None] = None
    """Blocks that were added to the prefix cache; `None` from engines that do not report its
    content."""
    uncached_blocks: Public[list[int]] = []
    """Blocks that were removed from it, before others (perhaps the same) were added."""
    num_schedule_calls: Public[int | None] = None
    """Calls of the scheduler before the outputs of this step were processed. An asynchronous
    scheduler is ahead of the outputs. `None` if it never is."""
    control_calls: Public[list[ControlCall]] = []
    """Calls from outside since the step before."""


class RequestFinished(Message, tag="RequestFinished"):
    """A request that left the engine. Sent after the step that ended it."""

    request_id: Public[Name]
    time: Public[float]
    status: Public[SequenceStatus]
    """The final status of all sequences of the request that have not finished before."""
    metrics: Public[RequestMetrics]
    """The final metrics."""
    text_lengths: Private[list[int]] = []
    """The length of each sequence's text in characters, in the order of the request's sequences, to
    verify the text deltas. Text that an engine withheld as a possible start of a stop string and
    dropped at an abort is not counted. Empty if the engine does not send it."""
    seq_ids: Public[list[int]] = []
    """The sequences of the answer, the best first; others are removed. Empty if the sequences are
    unchanged."""
    num_schedule_calls: Public[int | None] = None
    """Calls of the scheduler before the request ended, as for its arrival."""


class Heartbeat(Message, tag="Heartbeat"):
    """A message sent while nothing else is, so that viewers notice a lost engine."""

    time: Public[float]
    step: Public[int]


class NotPublished(Message, tag="NotPublished"):
    """The reason why messages are missing that the engine's publisher could not make.

    It is sent when the first of them is missing, and at most once a second while more are.
    """

    time: Public[float]
    num_messages: Public[int]
    """The number of such messages since the engine started."""
    reason: Public[Name]
    """The reason of the last one, in one sentence without text of a request: what is wrong with the
    value, or the type of an exception."""
    detail: Private[Name] = ""
    """The text of that exception, which may quote a request."""


class EngineStopped(Message, tag="EngineStopped"):
    """The last message of an incarnation."""

    time: Public[float]
    reason: Public[str] = ""
    """One sentence for the user."""
    failed: Public[bool] = False
    """True if the engine cannot continue; false if somebody has ended it."""


Event: TypeAlias = (
    EngineInfo
    | RequestArrived
    | StreamingUpdate
    | Step
    | RequestFinished
    | Heartbeat
    | NotPublished
    | EngineStopped
)


class SnapshotRequest(Message, tag="SnapshotRequest"):
    """A request for the whole state. The reply is a `Snapshot`."""

    with_parts: bool = False
    """True if the viewer reads a large snapshot in parts, which it decodes while others arrive."""


class SummaryRequest(Message, tag="SummaryRequest"):
    """A request for the figures of a list of engines. The reply is an `EngineSummary`."""


class Submit(Message, tag="Submit"):
    """A command to run a prompt. The reply is `Accepted` or `Refused`."""

    prompt: str
    sampling_params: SamplingParams
    priority: int = 0


class Abort(Message, tag="Abort"):
    """A command to end a request. The reply is `Accepted` or `Refused`."""

    request_id: Name


Command: TypeAlias = SnapshotRequest | SummaryRequest | Submit | Abort


class Accepted(Message, tag="Accepted"):
    """The reply to a command that the engine carried out."""

    request_id: Name


class Refused(Message, tag="Refused"):
    """The reply to a command or request that the engine refused."""

    error: str
    """One sentence for the user."""


class EngineSummary(Message, tag="EngineSummary"):
    """The figures of one engine in a list of engines, of about 250 bytes."""

    time: Public[float]
    """The engine's clock."""
    engine_id: Public[Name]
    """As in `EngineInfo`."""
    model: Public[Name]
    """As in `EngineInfo`."""
    data_parallel_rank: Public[int | None] = None
    """As in `EngineInfo`."""
    kv_role: Public[Name] = ""
    """The role in disaggregated prefill, such as vLLM's `kv_producer`; empty without one."""
    max_num_seqs: Public[int] = 0
    """As in `EngineInfo`."""
    num_gpu_blocks: Public[int] = 0
    """As in `EngineInfo`."""
    step: Public[int] = -1
    """The last step; -1 before the first."""
    num_running: Public[int] = 0
    """Running sequences."""
    num_waiting: Public[int] = 0
    """Waiting sequences, including preempted ones and parked ones."""
    num_swapped: Public[int] = 0
    """Sequences in host memory."""
    num_parked: Public[int] = 0
    """The part of the waiting and swapped sequences that waits for something else than its turn."""
    num_used_blocks: Public[int | None] = None
    """As in the `StepStats` of the last step, like the figures below; `None` before the first."""
    num_free_blocks: Public[int | None] = None
    num_prefill_tokens: Public[int | None] = None
    num_decode_tokens: Public[int | None] = None
    num_preemptions: Public[int | None] = None
    oldest_wait: Public[float] = 0.0
    """The longest time for which a request now waits: for its first token since its arrival, to run
    again since its last token, or all of them for a step; 0 if none waits."""
    ttft_p50: Public[float | None] = None
    """The median time to first token in the last minute; `None` without any."""
    ttft_p99: Public[float | None] = None
    itl_p50: Public[float | None] = None
    """The median time between two tokens in the last minute; `None` without any."""
    itl_p99: Public[float | None] = None
    generated_rate: Public[float | None] = None
    """Tokens generated per second, since about a second ago; `None` if that is not known."""
    prefill_rate: Public[float | None] = None
    """Prompt tokens computed per second."""
    step_rate: Public[float | None] = None
    """Steps per second."""
    limit: Public[Name] = ""
    """The limit of the engine in the last minute, in one sentence or the beginning of it."""
    is_limited: Public[bool] = False
    """True if something did."""
    stopped: Public[Name | None] = None
    """The reason why the engine stopped; `None` while it runs."""
