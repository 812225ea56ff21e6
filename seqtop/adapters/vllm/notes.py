"""What the half of the adapter inside vLLM tells the half outside: plain facts, cheap to take down.

Ids are vLLM's internal ones. Statuses are the names of vLLM's `RequestStatus`. Times are epoch
seconds, durations seconds.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

Tables: TypeAlias = tuple[list[int], ...]
"""Block ids, one list for each KV-cache group."""


class Note(msgspec.Struct, array_like=True, gc=False):
    """Base of all notes; those that travel alone have a tag."""


class EngineStarted(Note, tag="EngineStarted"):
    """The engine, as it is when its scheduler has been built."""

    vllm_version: str
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
    groups: list[str]
    """The kind of each KV-cache group, the main one first; empty where there is but one."""
    tokenizer: str | None
    tokenizer_revision: str | None
    data_parallel_rank: int
    has_random_suffix: bool
    """Whether internal ids are the user's with 9 characters appended."""


class Arrived(Note, tag="Arrived"):
    """A request has been given to the scheduler."""

    request_id: str
    arrival_time: float
    status: str
    priority: int
    num_prompt_tokens: int
    prompt_token_ids: list[int]
    """Empty for a prompt of embeddings."""
    sampling_params: dict[str, Any] | None


class Preempted(Note):
    request_id: str
    num_lost_tokens: int
    for_request_id: str | None


class Admitted(Note):
    """A request went from waiting to running, for the first time or again."""

    request_id: str
    num_cached_tokens: int
    """Computed tokens that it starts with."""
    tables: Tables


class Scheduled(Note):
    """One run of `schedule`."""

    start_time: float
    duration: float
    preempted: list[Preempted]
    admitted: list[Admitted]
    appended: list[tuple[str, Tables]]
    """New blocks of requests that were running already."""
    replaced: list[tuple[str, Tables]]
    """Whole tables, of models where blocks within a table are given up."""
    num_running: int
    num_tokens: int
    """Tokens scheduled, all requests together."""
    head: str | None
    """Who was the head of the waiting queue afterwards."""


class RequestEnded(Note):
    request_id: str
    status: str
    stop_reason: int | str | None
    num_computed_tokens: int


class Stepped(Note, tag="Stepped"):
    """One run of `update_from_output`, and all that has happened since the one before."""

    scheduled: list[Scheduled]
    """The runs of `schedule` since; with async scheduling the next step's is among them."""
    start_time: float
    """When the step whose outputs these are was scheduled."""
    scheduler_time: float
    execute_time: float
    time: float
    num_scheduled_tokens: dict[str, int]
    num_draft_tokens: dict[str, int]
    output_ids: list[str] | None
    """Who got tokens, and in `output_token_ids` which; `None` for all of `num_scheduled_tokens`,
    in that order."""
    output_token_ids: list[list[int]]
    ended: list[RequestEnded]
    """Also those that were aborted between steps."""
    running: list[str] | None
    """The queue of running requests, in its order; `None` where it is the same as before."""
    num_computed_tokens: list[int]
    """Of those in `running`."""
    held: dict[str, str]
    """Waiting requests whose status has changed to another kind of waiting."""
    num_waiting: int
    num_free_blocks: int
    """Blocks in no table."""
    num_cached_blocks: int
    """Of those, blocks that the prefix cache can still give out."""


class EngineStopping(Note, tag="EngineStopping"):
    """The scheduler was shut down, or the adapter gave up."""

    time: float
    reason: str


AnyNote: TypeAlias = EngineStarted | Arrived | Stepped | EngineStopping
