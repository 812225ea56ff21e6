"""The state of an engine as plain data: what `EngineState.apply` writes and every view reads.

Everything here is a msgspec struct, so a state can be encoded whole (a snapshot), compared field
by field and kept by the hundred thousand without burdening the garbage collector. What there is a
number of for each token is in columns (`seqtop.wire.columns`): copied whole, and never one by one.
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
from seqtop.sequence.privacy import Masked, Private, Public
from seqtop.wire.columns import Floats, Ints
from seqtop.wire.messages import PreemptionMode, WaitReason

SpanKind: TypeAlias = Literal["queued", "prefill", "decode", "preempted", "swapped"]


class Span(msgspec.Struct, omit_defaults=True):
    """A stretch of a request's life, for its timeline. Times are epoch seconds."""

    kind: Public[SpanKind]
    start: Public[float]
    end: Public[float | None]
    """`None` while it lasts."""
    num_steps: Public[int] = 0
    num_tokens: Public[int] = 0
    """Tokens computed in it."""


class SequenceState(msgspec.Struct, omit_defaults=True):
    """One sequence after the last applied step."""

    seq_id: Public[int]
    request_id: Public[str]
    status: Public[SequenceStatus] = SequenceStatus.WAITING
    num_prompt_tokens: Public[int] = 0
    num_computed_tokens: Public[int] = 0
    """Tokens whose keys and values are in the KV cache."""
    num_cached_tokens: Public[int] = 0
    """Of those, tokens found in the prefix cache."""
    output_token_ids: Masked[Ints] = msgspec.field(default_factory=partial(Ints, "i"))
    output_logprobs: Private[Floats] = msgspec.field(default_factory=partial(Floats, "f"))
    top_logprobs: Private[dict[int, dict[int, Logprob]]] = {}
    """Output index to the candidates there, where the request asked for them."""
    cumulative_logprob: Private[float] = 0.0
    text: Private[str] = ""
    last_delta_length: Private[int] = 0
    """How many characters of `text` the newest delta brought."""
    block_table: Public[list[int]] = []
    """Physical blocks on the device, in logical order; empty while it has none there."""
    stop_reason: Private[int | str | None] = None
    parent_seq_id: Public[int | None] = None
    last_step: Public[int] = -1
    """The last step that changed this sequence."""
    engine_status: Public[str] = ""
    """The engine's own name for the status, where it makes finer distinctions."""
    num_draft_tokens: Public[int | None] = None
    """Speculative tokens verified so far; `None` without speculative decoding."""
    num_accepted_tokens: Public[int | None] = None
    """Of those, tokens that became output."""
    group_block_tables: Public[list[list[int]]] = []
    """Tables of the KV-cache groups after the first, whose table is `block_table`."""
    host_table: Public[list[int]] = []
    """Blocks in host memory that it was swapped out to, in logical order."""
    fork_length: Public[int | None] = None
    """Tokens, of prompt and output, that it had in common with its parent when it was forked."""
    text_lengths: Masked[Ints] = msgspec.field(default_factory=partial(Ints, "b"))
    """Characters that each output token has added to `text`; -1 where they are among those of the
    next token that says how many, as of tokens that came together. (Lengths rather than ends: they
    take a byte each.)"""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens together."""
        return self.num_prompt_tokens + len(self.output_token_ids)


class CachedBlock(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A block that the prefix cache knows: which tokens it holds, by whoever wrote it."""

    request_id: Public[str]
    seq_id: Public[int]
    position: Public[int]
    """The logical position that it had in the table of that sequence."""


class RequestState(msgspec.Struct, omit_defaults=True):
    """One request: what was asked, how it fares, and the sequences that answer it."""

    request_id: Public[str]
    metrics: Public[RequestMetrics]
    seq_ids: Public[list[int]]
    num_prompt_tokens: Public[int] = 0
    prompt: Private[str | None] = None
    prompt_token_ids: Private[Ints] = msgspec.field(default_factory=partial(Ints, "i"))
    sampling_params: Public[SamplingParams | None] = None
    pooling_params: Public[PoolingParams | None] = None
    priority: Public[int] = 0
    spans: Public[list[Span]] = []
    """What it has gone through, oldest first; the last one may still be open."""
    token_chunk_size: Public[int] = 0
    """Tokens per sequence scheduled for it the last time it was scheduled."""
    num_scheduled_steps: Public[int] = 0
    num_preemptions: Public[int] = 0
    num_lost_tokens: Public[int] = 0
    """Computed tokens that preemptions threw away."""
    last_preemption_mode: Public[PreemptionMode | None] = None
    preempted_for: Public[str | None] = None
    """The request that the last preemption made room for."""
    wait_reason: Public[WaitReason | None] = None
    """Why the scheduler left it waiting, if it said so of this very request."""
    finish_reason: Public[str | None] = None
    """`stop`, `length` or `abort`, as the OpenAI API names them; `None` while unfinished."""
    preemption_steps: Public[list[int]] = []
    queue_turn: Public[int] = 0
    """Orders the queue of an engine whose `queue_order` is `fcfs`: counts up with each arrival,
    and below zero with each preemption."""
