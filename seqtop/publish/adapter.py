"""The interface between an engine and `Publisher`: an abstract class, and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from seqtop.sequence import SamplingParams, SequenceStatus
from seqtop.wire.messages import QueueOrder, WaitCause

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class EngineDescription:
    """The description of an engine. `EngineInfo` in `docs/protocol.md` explains each field."""

    engine: str
    """Software and version, such as `my-engine 1.0`."""
    model: str
    block_size: int
    """Tokens per block of the KV cache."""
    num_gpu_blocks: int
    """Blocks of the KV cache."""
    max_num_seqs: int
    """The most sequences that run in one step."""
    max_num_batched_tokens: int | None
    """The most tokens that one step computes; `None` if the engine does not tell it."""
    max_model_len: int
    """The most tokens of a sequence, prompt and output."""
    enable_chunked_prefill: bool = False
    """True if a prompt may be computed in several steps."""
    enable_prefix_caching: bool = False
    """True if blocks of equal prefixes are reused."""
    num_reserved_blocks: int = 0
    """First blocks of the pool, which no sequence can hold."""
    queue_order: QueueOrder = "fcfs"
    """The order of the waiting queue; `fcfs` has the latest preempted request first."""
    dtype: str = ""
    device: str = ""
    tokenizer: str | None = None
    """A directory or an id of the Hugging Face hub."""
    not_available: Mapping[str, str] = field(default_factory=dict)
    """Columns and figures that the engine cannot give, by key, and the reason of each."""


@dataclass(kw_only=True, slots=True)
class RequestDescription:
    """The present state of a request. Lists may be the engine's own: they are only read."""

    status: SequenceStatus
    """`RUNNING` from its first tokens in a batch, until it is preempted (`WAITING`) or finished."""
    token_ids: Sequence[int]
    """All tokens, prompt and output."""
    num_prompt_tokens: int
    """Only a partial prompt may grow, until the first token of the output."""
    num_computed_tokens: int
    """Tokens whose KV cache is computed, including those found in the prefix cache: between two
    steps, all but the last one of a request that generates."""
    block_table: Sequence[int]
    """Numbers of its blocks in logical order; empty without any."""
    num_cached_tokens: int | None = None
    """The tokens found in the prefix cache when it was last admitted; `None` if unknown."""
    text: str | None = None
    """The text of the output so far, which only grows; `None` if unknown."""
    wait_cause: WaitCause | None = None
    """The scheduler's reason to leave it waiting in the last step; `None` if it gave none."""
    # Read once, when the request is new:
    arrival_time: float | None = None
    """Seconds since the epoch; `None` for the time at which `Publisher` first sees it."""
    prompt: str | None = None
    """The text of the prompt; `None` if unknown."""
    sampling_params: SamplingParams | None = None
    priority: int = 0
    """Requests with lower values run first."""
    lora: str = ""
    """The name of its LoRA adapter; empty without one."""
    is_prompt_partial: bool = False
    """True if the engine tells the size of the prompt only with the first token of the output."""


class Adapter(ABC, Generic[R]):
    """The methods that an author implements. `R` is the engine's own type of a request.

    They are called on the thread that steps the engine, between two steps, and may take their time
    only from that. An exception costs viewers a gap, and the engine nothing.
    """

    @abstractmethod
    def describe_engine(self) -> EngineDescription:
        """Returns the description of the engine. Called once."""

    @abstractmethod
    def requests(self) -> Mapping[str, R]:
        """Returns all unfinished requests by request id."""

    @abstractmethod
    def describe_request(self, request: R) -> RequestDescription:
        """Returns the present state of a request.

        It is called for each unfinished request after each step, and once more for a request that
        `requests` no longer has. Its status then says how it ended. One that does not say is
        published as `FINISHED_ABORTED`.
        """

    def is_waiting(self, request: R) -> bool:
        """Returns whether a request is in the queue, without anything to report but that.

        An engine with thousands of waiting requests may override it: one that was waiting at the
        step before is then not described again. Its `wait_cause` is not read either.
        """
        return False

    @abstractmethod
    def num_free_blocks(self) -> int:
        """Returns the number of blocks that no request holds."""

    def num_cached_blocks(self) -> int | None:
        """Returns the part of `num_free_blocks` whose content the prefix cache can reuse.

        `None` if the engine does not count them.
        """
        return None

    def num_unlisted_requests(self) -> int:
        """Returns the number of waiting requests of which the engine tells no more than that."""
        return 0
