"""The state of an engine as plain data: the reducer writes it and every view reads it.

Everything here is a msgspec struct. So a state can be encoded whole (a snapshot) and compared field
by field, and hundreds of thousands of sequences do not burden the garbage collector. Numbers of
which there is one per token are in columns (`seqtop.wire.columns`), which are copied whole.
"""

from functools import partial
from typing import Literal, TypeAlias

import msgspec

from seqtop.sequence import (
    Logprob,
    PoolingParams,
    RequestMetrics,
    SamplingParams,
    SequenceStatus,
)
from seqtop.wire.columns import Floats, Ints
from seqtop.wire.messages import EngineInfo, PreemptionMode, StepStats, WaitReason

DEFAULT_MAX_FINISHED = 1_000
"""Finished requests that a state keeps unless a viewer asks for more."""

SpanKind: TypeAlias = Literal["queued", "prefill", "decode", "preempted", "swapped"]


class Span(msgspec.Struct, omit_defaults=True):
    """A phase of a request, for its timeline. Times are epoch seconds."""

    kind: SpanKind
    start: float
    end: float | None
    """`None` while the phase lasts."""
    num_steps: int = 0
    num_tokens: int = 0
    """Tokens computed in this phase."""


class SequenceState(msgspec.Struct, omit_defaults=True):
    """A sequence after the last applied step."""

    seq_id: int
    request_id: str
    status: SequenceStatus = SequenceStatus.WAITING
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the KV cache."""
    num_cached_tokens: int = 0
    """The computed tokens that were found in the prefix cache."""
    output_token_ids: Ints = msgspec.field(default_factory=partial(Ints, "i"))
    output_logprobs: Floats = msgspec.field(default_factory=partial(Floats, "f"))
    top_logprobs: dict[int, dict[int, Logprob]] = {}
    """Candidate tokens by output index, where the request asked for log probabilities."""
    cumulative_logprob: float = 0.0
    text: str = ""
    last_delta_length: int = 0
    """Characters that the newest delta added to `text`."""
    block_table: list[int] = []
    """Physical blocks on the device, in logical order."""
    stop_reason: int | str | None = None
    parent_seq_id: int | None = None
    last_step: int = -1
    """The last step that changed this sequence."""
    engine_status: str = ""
    """The engine's own name for the status, where it makes finer distinctions."""
    num_draft_tokens: int | None = None
    """Speculative tokens verified so far; `None` without speculative decoding."""
    num_accepted_tokens: int | None = None
    """The draft tokens that became output."""
    group_block_tables: list[list[int]] = []
    """Block tables of the second and later KV-cache groups; the first has `block_table`."""
    host_table: list[int] = []
    """Blocks in host memory that hold a swapped-out sequence, in logical order."""
    fork_length: int | None = None
    """Tokens of prompt and output shared with the parent at the fork."""
    text_lengths: Ints = msgspec.field(default_factory=partial(Ints, "b"))
    """Characters that each output token added to `text`.

    Tokens that arrived together have -1, except the last of them, which has the sum. Lengths
    take one byte each, which offsets would not.
    """

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens together."""
        return self.num_prompt_tokens + len(self.output_token_ids)


class CachedBlock(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A block in the prefix cache, identified by the sequence that wrote it."""

    request_id: str
    seq_id: int
    position: int
    """The logical position of the block in the table of that sequence."""


class RequestState(msgspec.Struct, omit_defaults=True):
    """A request: its parameters, its progress and the ids of its sequences."""

    request_id: str
    metrics: RequestMetrics
    seq_ids: list[int]
    num_prompt_tokens: int = 0
    prompt: str | None = None
    prompt_token_ids: Ints = msgspec.field(default_factory=partial(Ints, "i"))
    sampling_params: SamplingParams | None = None
    pooling_params: PoolingParams | None = None
    priority: int = 0
    spans: list[Span] = []
    """Phases of the request, oldest first; the last one may still be open."""
    token_chunk_size: int = 0
    """Tokens per sequence in the last step that scheduled the request."""
    num_scheduled_steps: int = 0
    num_preemptions: int = 0
    num_lost_tokens: int = 0
    """Computed tokens that preemptions discarded."""
    last_preemption_mode: PreemptionMode | None = None
    preempted_for: str | None = None
    """Id of the request that the last preemption made room for."""
    wait_reason: WaitReason | None = None
    """The reason that the last step gave for leaving this request waiting."""
    finish_reason: str | None = None
    """`stop`, `length` or `abort`, as in the OpenAI API; `None` while unfinished."""
    preemption_steps: list[int] = []
    queue_turn: int = 0
    """Sort key of the queue of an engine whose `queue_order` is `fcfs`.

    Each arrival takes the next positive number, each preemption the next negative one.
    """


class EngineData(msgspec.Struct):
    """Everything known about one engine after the events applied so far.

    `seqtop.state.EngineState` adds `apply`, which is the only writer.
    """

    info: EngineInfo | None = None
    step: int = -1
    """Number of the last applied step; -1 before the first."""
    time: float = 0.0
    """The engine's clock at the last event, epoch seconds."""
    stats: StepStats | None = None
    requests: dict[str, RequestState] = {}
    """Unfinished and recently finished requests, in order of arrival."""
    sequences: dict[int, SequenceState] = {}
    finished: list[str] = []
    """Ids of the finished requests in `requests`, in the order in which they finished."""
    max_finished: int = DEFAULT_MAX_FINISHED
    num_by_status: list[int] = msgspec.field(default_factory=lambda: [0] * len(SequenceStatus))
    """Number of sequences in `sequences` for each `SequenceStatus`."""
    num_output_tokens: int = 0
    """Tokens sampled since the first applied step."""
    num_steps_seen: int = 0
    stopped: str | None = None
    """The reason why the engine stopped; `None` while it runs."""
    num_anomalies: int = 0
    """Events that contradicted the state."""
    last_anomaly: str | None = None
    num_prefill_tokens: int = 0
    """Prompt tokens computed since the first applied step."""
    num_finished: int = 0
    """Requests finished since the first applied event, whether or not they are still here."""
    wait_reason_ids: list[str] = []
    """Ids of the requests that the last step gave a reason to wait."""
    num_queued: int = 0
    """Arrivals and preemptions so far: how often a request has joined the queue."""
    cached_blocks: dict[int, CachedBlock] | None = None
    """The blocks in the prefix cache by number, whether or not a block table names them.

    `None` where the engine does not report the content of its prefix cache.
    """

    def report_anomaly(self, text: str) -> None:
        """Counts an event that contradicts the state, and stores `text` as the last one."""
        self.num_anomalies += 1
        self.last_anomaly = text
