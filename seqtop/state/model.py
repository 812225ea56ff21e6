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
from seqtop.wire.columns import Floats, Ints
from seqtop.wire.messages import PreemptionMode, WaitReason

SpanKind: TypeAlias = Literal["queued", "prefill", "decode", "preempted", "swapped"]


class Span(msgspec.Struct, omit_defaults=True):
    """A stretch of a request's life, for its timeline. Times are epoch seconds."""

    kind: SpanKind
    start: float
    end: float | None
    """`None` while it lasts."""
    num_steps: int = 0
    num_tokens: int = 0
    """Tokens computed in it."""


class SequenceState(msgspec.Struct, omit_defaults=True):
    """One sequence after the last applied step."""

    seq_id: int
    request_id: str
    status: SequenceStatus = SequenceStatus.WAITING
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the KV cache."""
    num_cached_tokens: int = 0
    """Of those, tokens found in the prefix cache."""
    output_token_ids: Ints = msgspec.field(default_factory=partial(Ints, "i"))
    output_logprobs: Floats = msgspec.field(default_factory=partial(Floats, "f"))
    top_logprobs: dict[int, dict[int, Logprob]] = {}
    """Output index to the candidates there, where the request asked for them."""
    cumulative_logprob: float = 0.0
    text: str = ""
    last_delta_length: int = 0
    """How many characters of `text` the newest delta brought."""
    block_table: list[int] = []
    """Physical blocks on the device, in logical order; empty while it has none there."""
    stop_reason: int | str | None = None
    parent_seq_id: int | None = None
    last_step: int = -1
    """The last step that changed this sequence."""
    engine_status: str = ""
    """The engine's own name for the status, where it makes finer distinctions."""
    num_draft_tokens: int | None = None
    """Speculative tokens verified so far; `None` without speculative decoding."""
    num_accepted_tokens: int | None = None
    """Of those, tokens that became output."""
    group_block_tables: list[list[int]] = []
    """Tables of the KV-cache groups after the first, whose table is `block_table`."""
    host_table: list[int] = []
    """Blocks in host memory that it was swapped out to, in logical order."""
    fork_length: int | None = None
    """Tokens, of prompt and output, that it had in common with its parent when it was forked."""
    text_lengths: Ints = msgspec.field(default_factory=partial(Ints, "b"))
    """Characters that each output token has added to `text`; -1 where they are among those of the
    next token that says how many, as of tokens that came together. (Lengths rather than ends: they
    take a byte each.)"""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens together."""
        return self.num_prompt_tokens + len(self.output_token_ids)


class CachedBlock(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A block that the prefix cache knows: which tokens it holds, by whoever wrote it."""

    request_id: str
    seq_id: int
    position: int
    """The logical position that it had in the table of that sequence."""


class RequestState(msgspec.Struct, omit_defaults=True):
    """One request: what was asked, how it fares, and the sequences that answer it."""

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
    """What it has gone through, oldest first; the last one may still be open."""
    token_chunk_size: int = 0
    """Tokens per sequence scheduled for it the last time it was scheduled."""
    num_scheduled_steps: int = 0
    num_preemptions: int = 0
    num_lost_tokens: int = 0
    """Computed tokens that preemptions threw away."""
    last_preemption_mode: PreemptionMode | None = None
    preempted_for: str | None = None
    """The request that the last preemption made room for."""
    wait_reason: WaitReason | None = None
    """Why the scheduler left it waiting, if it said so of this very request."""
    finish_reason: str | None = None
    """`stop`, `length` or `abort`, as the OpenAI API names them; `None` while unfinished."""
    preemption_steps: list[int] = []
    queue_turn: int = 0
    """Orders the queue of an engine whose `queue_order` is `fcfs`: counts up with each arrival,
    and below zero with each preemption."""
