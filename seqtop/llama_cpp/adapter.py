"""The slots of llama.cpp's server as an engine of `seqtop.publish`.

A slot says how far its request is, not what it consists of: no token, no text, no reason for an
end. Token ids are therefore zeros, as in a redacted stream, and what is unknown is declared in
`EngineDescription.not_available`.
"""

from __future__ import annotations

import msgspec

from seqtop.llama_cpp.client import Props, Slot
from seqtop.publish import Adapter, EngineDescription, RequestDescription, SequenceStatus
from seqtop.sequence import SamplingParams

_ARRIVAL = "llama.cpp's server does not say when a request arrived"
_POLL = "tokens are seen poll by poll, and not one by one"
NOT_AVAILABLE = {
    **dict.fromkeys(("queue", "waited", "ttft", "e2e", "tps"), _ARRIVAL),
    "itl": _POLL,
    **dict.fromkeys(
        ("why", "harm"), "llama.cpp's server says how many requests wait, not which ones"
    ),
    "prio": "llama.cpp's server has no priorities",
    "preempt": "llama.cpp's server does not preempt",
    "lost": "llama.cpp's server does not preempt",
    "steps": "a step is a poll, in which the server may have run several batches",
    "prefix_misses": "llama.cpp's server does not say why tokens were not found",
    "token_budget": "llama.cpp's server does not say how many tokens a batch may have",
    "finish_reason": "llama.cpp's server does not say why a request ended: stop stands for any end",
}
"""Columns and figures that slots do not give, and the reasons."""


class _Task(msgspec.Struct):
    """A request in a slot. No number of it ever falls, although those of the slot may."""

    slot: Slot
    before: float
    """The time of the poll before the first one that saw it."""
    num_prompt_tokens: int = 0
    num_decoded: int = 0
    has_ended: bool = False

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were in the context of the slot."""
        return max(self.slot.n_prompt_tokens_cache or 0, 0)

    @property
    def has_run(self) -> bool:
        """True if something was computed."""
        return self.num_decoded > 0 or self.num_prompt_tokens > self.num_cached_tokens

    def advance(self, slot: Slot) -> None:
        """Takes over the numbers of the slot."""
        self.slot = slot
        self.num_prompt_tokens = max(slot.num_prefilled, self.num_prompt_tokens)
        self.num_decoded = max(slot.num_decoded, self.num_decoded)


class LlamaAdapter(Adapter[_Task]):
    """The slots of a server, as of the last poll.

    Args:
        props: The server's properties.
        slots: Its slots.
        num_deferred: Requests that wait for a slot.
        time: The time of the poll in seconds since the epoch.

    Attributes:
        time: The time of the last poll.
    """

    def __init__(self, props: Props, slots: list[Slot], num_deferred: int, time: float) -> None:
        self.time = time
        self._props = props
        self._tasks: dict[str, _Task] = {}
        self.take(slots, num_deferred, time)

    def is_news(self, slots: list[Slot], num_deferred: int) -> bool:
        """Returns whether the answers of a poll say something else than the last ones."""
        before = [_shown(slot) for slot in self._slots], self._num_deferred
        return ([_shown(slot) for slot in slots], num_deferred) != before

    def take(self, slots: list[Slot], num_deferred: int, time: float) -> None:
        """Takes over the answers of a poll."""
        self._slots, self._num_deferred = slots, num_deferred
        tasks, self._tasks = self._tasks, {}
        for slot in slots:
            if slot.is_processing:
                request_id = _request_id(slot)
                task = self._tasks[request_id] = tasks.pop(request_id, _Task(slot, self.time))
                task.advance(slot)
        for task in tasks.values():
            task.has_ended = True
        self.time = time

    def describe_engine(self) -> EngineDescription:
        """Returns the description of the server. A block is the context of a slot."""
        props, slots = self._props, self._slots
        n_ctx = max([slot.n_ctx for slot in slots], default=props.default_generation_settings.n_ctx)
        return EngineDescription(
            engine=f"llama.cpp {props.build_info}".strip(),
            model=props.model_alias or props.model_path,
            block_size=max(n_ctx, 1),
            num_gpu_blocks=len(slots),
            max_num_seqs=len(slots),
            max_num_batched_tokens=None,
            max_model_len=n_ctx,
            enable_chunked_prefill=True,
            enable_prefix_caching=True,
            dtype=props.model_ftype or "unknown",
            device="unknown",
            not_available=NOT_AVAILABLE,
        )

    def requests(self) -> dict[str, _Task]:
        """Returns the requests in slots."""
        return self._tasks

    def describe_request(self, request: _Task) -> RequestDescription:
        """Returns the state of a request, which waits until something is computed for it."""
        slot, num_decoded = request.slot, request.num_decoded
        has_run, num_tokens = request.has_run, request.num_prompt_tokens + num_decoded
        status = SequenceStatus.RUNNING if has_run else SequenceStatus.WAITING
        if request.has_ended:
            status = SequenceStatus.FINISHED_STOPPED
        return RequestDescription(
            status=status,
            token_ids=[0] * num_tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            # The newest token of the output has not been computed.
            num_computed_tokens=num_tokens - min(num_decoded, 1) if has_run else 0,
            block_table=[slot.id] if has_run else [],
            num_cached_tokens=request.num_cached_tokens,
            arrival_time=request.before,
            sampling_params=_sampling_params(slot),
            lora=next((f"adapter {used.id}" for used in slot.params.lora if used.scale), ""),
            is_prompt_partial=True,
        )

    def num_free_blocks(self) -> int:
        """Returns the number of slots in which nothing is computed for a request."""
        return len(self._slots) - sum(task.has_run for task in self._tasks.values())

    def num_cached_blocks(self) -> int:
        """Returns the number of slots without a request whose context the next one can use."""
        return sum(not slot.is_processing and bool(slot.n_prompt_tokens) for slot in self._slots)

    def num_unlisted_requests(self) -> int:
        """Returns the number of requests that wait for a slot."""
        return self._num_deferred


def _shown(slot: Slot) -> tuple[object, ...]:
    """Returns the numbers of a slot that viewers see."""
    if not slot.is_processing:
        return slot.id, bool(slot.n_prompt_tokens)
    return slot.id, _request_id(slot), slot.num_prefilled, slot.num_decoded


def _request_id(slot: Slot) -> str:
    return f"task-{slot.id_task}" if slot.id_task is not None else f"slot-{slot.id}"


def _sampling_params(slot: Slot) -> SamplingParams:
    params = slot.params
    return SamplingParams(
        max_tokens=params.n_predict if params.n_predict > 0 else None,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
    )
