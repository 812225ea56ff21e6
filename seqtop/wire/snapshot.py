"""Snapshots: the state of an engine as messages, for viewers that join late.

A snapshot says what is and what has been. What is: each request as its arrival, each sequence as
one update. What has been: outputs, phases, waits and totals. A publisher that only repairs its own
copy of the state (`MessagePublisher.needs_snapshot` of `seqtop.transport.publisher`) leaves out the
histories.
"""

from functools import partial
from typing import Annotated, Literal, TypeAlias

import msgspec

from seqtop.sequence import Logprob
from seqtop.sequence.names import Name
from seqtop.sequence.privacy import Masked, Private, Public
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.messages import (
    Accepted,
    CachedBlocks,
    EngineInfo,
    EngineSummary,
    Message,
    MissCause,
    NotPublished,
    PreemptionMode,
    Refused,
    RequestArrived,
    SequenceUpdate,
    StepStats,
    WaitReason,
)

SpanKind: TypeAlias = Literal["queued", "prefill", "decode", "preempted", "swapped"]
Seconds: TypeAlias = Annotated[dict[Name, float], msgspec.Meta(max_length=64)]
"""Seconds by cause. Viewers have many copies of them, so there are few causes."""

Sums: TypeAlias = Annotated[list[float], msgspec.Meta(max_length=14)]
"""Weighted sums over steps."""


class Span(msgspec.Struct, array_like=True, gc=False):
    """A phase of a request, for its timeline. Times are epoch seconds."""

    kind: Public[SpanKind]
    start: Public[float]
    end: Public[float | None]
    """`None` while the phase lasts."""
    num_steps: Public[int] = 0
    """Steps in this phase."""
    num_tokens: Public[int] = 0
    """Tokens computed in this phase."""


class WaitTimes(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The waits of a request in the queue, before it first ran and after preemptions."""

    total: Public[float] = 0.0
    """Seconds of all waits before `since`."""
    by_cause: Public[Seconds] = {}
    """The part of `total` whose cause is known: a `WaitCause`, the engine's own name for it, or
    `arriving`, `between_steps` or `in_progress`."""
    named: Public[float] = 0.0
    """Seconds in which the scheduler named this request itself, rather than one before it."""
    since: Public[float | None] = None
    """The time from which the present wait is not in `total`, epoch seconds; `None` while it does
    not wait."""
    blocked_before: Public[Seconds] = {}
    """`BlockedTimes.by_cause` at that time."""
    between: Public[float] = 0.0
    """The part of `total` between steps."""
    between_before: Public[float] = 0.0
    """`BlockedTimes.between` at `since`."""


class BlockedTimes(msgspec.Struct, array_like=True, frozen=True):
    """The time up to the end of the last step, by what a request in the queue waited for."""

    by_cause: Public[Seconds] = {}
    """Seconds by the cause that each step gave for the head of the queue, from its start to that of
    the next step; `between_steps` for those between steps without such a cause."""
    until: Public[float] = 0.0
    """The end of the last step, epoch seconds."""
    cause: Public[Name] = ""
    """The cause that the last step gave for the head of the queue; empty without one."""
    between: Public[float] = 0.0
    """Seconds between steps."""


class StepCosts(msgspec.Struct, array_like=True, frozen=True):
    """The costs of steps by their tokens, and the weighted sums that they are fitted to.

    A step counts less, the longer ago it was.
    """

    per_step: Public[float | None] = None
    """Seconds of a step without tokens and the scheduler's time; `None` while there are too few
    steps."""
    per_prefill_token: Public[float] = 0.0
    """Seconds of a prefill token."""
    per_decode_token: Public[float] = 0.0
    """Seconds of a decode token."""
    num_steps: Public[int] = 0
    """Steps that were counted."""
    num_fitted: Public[int] = 0
    """The number of them when the costs were last fitted."""
    products: Public[Sums] = []
    """Sums of the products of each two of a step's amounts, which are 1, prefill tokens, decode
    tokens and 1 without a CUDA graph, and of each with its seconds without those of the
    scheduler; empty before the first step."""
    without_graph: Public[float] = 0.0
    """Seconds by which a step is longer without a CUDA graph."""


class Inversion(msgspec.Struct, array_like=True, frozen=True):
    """A wait for what requests of lower priority held."""

    request_id: Public[str]
    """The request that waited."""
    cause: Public[str]
    """The `WaitCause`."""
    holders: Public[list[str]]
    """Some of the requests of lower priority."""
    num_holders: Public[int]
    """The number of all of them."""
    priority: Public[int]
    """The most urgent priority of them."""
    seconds: Public[float]
    """The length of the wait so far."""
    time: Public[float]
    """The time at which it was so, epoch seconds."""


class Limits(msgspec.Struct, array_like=True, frozen=True):
    """The waiting of all requests by cause, and figures of waste (`seqtop.state.limits`)."""

    sums: Public[dict[Name, float]] = {}
    """Seconds that all requests together waited, by cause after `waited:`, and figures of steps."""
    samples: Public[list[tuple[float, dict[Name, float]]]] = []
    """Earlier `sums` of the last minute, each after its time in epoch seconds."""
    until: Public[float] = 0.0
    """The time up to which the waiting is added, epoch seconds."""
    since: Public[float] = 0.0
    """The time from which on it is added, epoch seconds."""
    inversion: Public[Inversion | None] = None
    """The longest wait for requests of lower priority, if there was one."""


class SequenceHistory(Message):
    """The past of a sequence. The fields are those of `seqtop.state.SequenceState`."""

    num_prompt_hits: Public[int] = 0
    """The tokens of the prompt that were found in the prefix cache before any preemption."""
    cumulative_logprob: Private[float] = 0.0
    """The sum of the log-probabilities of the output."""
    last_delta_length: Private[int] = 0
    """Characters that the newest delta added to the text."""
    parent_seq_id: Public[int | None] = None
    """The sequence that this one was forked from."""
    fork_length: Public[int | None] = None
    """Tokens of prompt and output shared with the parent at the fork."""
    last_step: Public[int] = -1
    """The last step that changed this sequence."""
    host_table: Public[list[int]] = msgspec.field(default_factory=list)
    """Blocks in host memory that hold a swapped-out sequence, in logical order."""
    text_lengths: Masked[Ints] = msgspec.field(default_factory=partial(Ints, "b"))
    """Characters that each output token added to the text. Tokens that arrived together have -1,
    except the last of them, which has the sum."""


class SequenceSnapshot(Message):
    """A sequence: its state as an update without output, its output, its past."""

    update: Public[SequenceUpdate]
    """Its `num_draft_tokens` and `num_accepted_tokens` are totals."""
    output_token_ids: Masked[Ints] = msgspec.field(default_factory=partial(Ints, "i"))
    output_logprobs: Private[Floats] = msgspec.field(default_factory=partial(Floats, "f"))
    """One per output token, or none."""
    text: Private[str] = ""
    """The output as text."""
    top_logprobs: Private[dict[int, dict[int, Logprob]]] = msgspec.field(default_factory=dict)
    """Candidate tokens by output index, where the request asked for them."""
    history: Public[SequenceHistory | None] = None
    """`None` if it is unknown."""


class RequestHistory(Message):
    """The past of a request. The fields are those of `seqtop.state.RequestState`."""

    spans: Public[list[Span]]
    """Its phases, oldest first; the last one may still be open. There is at least one."""
    is_announced: Public[bool] = True
    """False if no `RequestArrived` announced the request: its output is then read from deltas."""
    token_chunk_size: Public[int] = 0
    """Tokens per sequence in the last step that scheduled the request."""
    num_scheduled_steps: Public[int] = 0
    """Steps in whose batch the request was."""
    num_preemptions: Public[int] = 0
    num_lost_tokens: Public[int] = 0
    """Computed tokens that preemptions discarded."""
    last_preemption_mode: Public[PreemptionMode | None] = None
    preempted_for: Public[Name | None] = None
    """The request that the last preemption made room for."""
    preemption_steps: Public[list[int]] = msgspec.field(default_factory=list)
    """The steps that preempted the request."""
    queue_turn: Public[int] = 0
    """The position in a queue whose `queue_order` is `fcfs` or `preempted_last`."""
    wait_reason: Public[WaitReason | None] = None
    """The reason that the last step gave for leaving the request waiting."""
    wait: Public[WaitTimes] = WaitTimes()
    """The waits so far."""
    harm: Public[float | None] = None
    """Seconds that others waited for what the request held, or computed again for it; `None` if
    that is unknown."""
    harm_estimated: Public[float] = 0.0
    """Seconds by which its tokens made the steps of others longer, as estimated."""
    finish_reason: Public[Name | None] = None
    """`stop`, `length` or `abort`, as in the OpenAI API; `None` while unfinished."""
    renewed_arrival_time: Public[float | None] = None
    """The arrival of a streaming session's last input, if the engine orders its queue by that."""


class RequestSnapshot(Message):
    """A request: its arrival with its present metrics, its sequences, its past."""

    arrival: Public[RequestArrived]
    """Its `seq_ids` and `metrics` are the present ones."""
    sequences: Public[list[SequenceSnapshot]]
    """In the order of the arrival's `seq_ids`."""
    history: Public[RequestHistory | None] = None
    """`None` if it is unknown."""


class EngineHistory(Message):
    """The totals of an engine. The fields are those of `seqtop.state.EngineState`."""

    finished: Public[list[Name]] = msgspec.field(default_factory=list)
    """The finished requests of the snapshot, in the order in which they finished."""
    num_output_tokens: Public[int] = 0
    """Tokens sampled since the first step, here and below as far as steps were observed."""
    num_steps_seen: Public[int] = 0
    """Steps that were observed."""
    num_prefill_tokens: Public[int] = 0
    """Prompt tokens computed."""
    num_finished: Public[int] = 0
    """Requests that have finished, including those that are no longer stored."""
    num_queued: Public[int] = 0
    """Arrivals and preemptions, each of which put a request into the queue."""
    num_anomalies: Public[int] = 0
    """Events that contradicted the state."""
    last_anomaly: Public[str | None] = None
    """The latest such event in one sentence."""
    wait_reason_ids: Public[list[Name]] = msgspec.field(default_factory=list)
    """Requests that the last step gave a reason to wait."""
    blocked: Public[BlockedTimes] = BlockedTimes()
    """The time so far, by what a request in the queue waited for."""
    step_costs: Public[StepCosts] = StepCosts()
    """The costs of steps so far."""
    num_missed_tokens: Public[dict[MissCause, int]] = msgspec.field(default_factory=dict)
    """Tokens that were not in the prefix cache at admissions, by cause."""
    num_drafted: Public[list[int]] = msgspec.field(default_factory=list)
    """Draft tokens verified, by position in the draft."""
    num_accepted: Public[list[int]] = msgspec.field(default_factory=list)
    """The part of `num_drafted` that became output."""
    stopped: Public[str | None] = None
    """The reason why the engine stopped; `None` while it runs."""
    limits: Public[Limits] = Limits()
    """The waiting so far, and figures of waste."""
    not_published: Public[NotPublished | None] = None
    """The last message that the engine's publisher could not make; `None` if it could make all."""


class Snapshot(Message, tag="Snapshot"):
    """The state of an engine. Unfinished requests that it does not name have ended."""

    time: Public[float]
    """The engine's clock."""
    step: Public[int]
    """The number of the last step; -1 before the first."""
    stats: Public[StepStats | None]
    """The figures of that step."""
    requests: Public[list[RequestSnapshot]]
    """In order of arrival."""
    cached_blocks: Public[list[CachedBlocks] | None] = None
    """The blocks in the prefix cache; `None` from engines that do not report its content."""
    info: Public[EngineInfo | None] = None
    history: Public[EngineHistory | None] = None
    """`None` from an engine that keeps none."""
    has_parts: Public[bool] = False
    """True if further requests and blocks follow in `SnapshotPart` messages."""


class SnapshotPart(Message, tag="SnapshotPart"):
    """Further entries of the preceding snapshot."""

    index: Public[int]
    """The index, starting at 0."""
    is_last: Public[bool]
    """True for the last part."""
    requests: Public[list[RequestSnapshot]] = msgspec.field(default_factory=list)
    cached_blocks: Public[list[CachedBlocks]] = msgspec.field(default_factory=list)


Reply: TypeAlias = Snapshot | SnapshotPart | EngineSummary | Accepted | Refused
