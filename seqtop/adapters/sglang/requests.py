"""The record that the observer keeps of a request, and the reading of SGLang's `Req`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from seqtop.adapters.observations import Arrived, Tables
from seqtop.adapters.step_journal import ReportedRequest

_PARAMETERS: Final = {
    "n": "n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}
"""The names in vLLM of SGLang's sampling parameters."""

_TOP_K_ALL: Final = 1 << 30
"""SGLang's value of `top_k` for all tokens; in vLLM it is 0."""

_ENDS: Final = {"stop": "FINISHED_STOPPED", "length": "FINISHED_LENGTH_CAPPED"}
"""The final statuses, by `type` of a finish reason as the client gets it."""


class Request(ReportedRequest):
    """A request as reported so far. Its id is the user's and 9 characters, as no other one has."""

    num_pages: int = 0
    """Pages in its reported table."""
    num_protected: int = 0
    """The leading tokens that the radix tree owned when its table was read. If the tree takes over
    more, it may give the request other slots for them."""
    queue: str = ""
    """The name of the queue that it waits in, other than for its turn."""

    def forget_table(self) -> None:
        """Notes that the request has no pages."""
        self.num_pages = self.num_protected = 0


def num_tokens(req: Any) -> int:
    """Returns the number of tokens of a request, prompt and output."""
    return len(req.origin_input_ids) + len(req.output_ids)


def arrived(
    req: Any,
    request_id: str,
    status: str,
    clock: float,
    timer: float,
    *,
    has_priority: bool,
    loras: Mapping[str, Any],
) -> Arrived:
    """Returns the arrival of a request.

    Args:
        req: SGLang's `Req`.
        request_id: The id for observations.
        status: Its status.
        clock: The present time in seconds since the epoch.
        timer: The present time on the clock of SGLang's `time_stats`, in seconds.
        has_priority: Says that requests with lower priorities run first.
        loras: SGLang's references to LoRA adapters, by id.
    """
    params, stats = req.sampling_params, getattr(req, "time_stats", None)
    room = getattr(req, "bootstrap_room", None)
    times = (getattr(stats, name, 0) for name in ("scheduler_recv_time", "wait_queue_entry_time"))
    lora_id = getattr(req, "lora_id", None) or ""
    since = timer - next((at for at in times if at), timer)
    return Arrived(
        request_id=request_id,
        arrival_time=clock - max(since, 0.0),
        status=status,
        priority=(getattr(req, "priority", None) or 0) if has_priority else 0,
        num_prompt_tokens=len(req.origin_input_ids),
        prompt_token_ids=list(req.origin_input_ids),
        sampling_params=_sampling_params(params) if params is not None else None,
        lora=str(getattr(loras.get(lora_id), "lora_name", lora_id)),
        transfer_id="" if room is None else str(room),
    )


def _sampling_params(params: Any) -> dict[str, Any]:
    found = {ours: getattr(params, name, None) for name, ours in _PARAMETERS.items()}
    top_k = getattr(params, "top_k", 0)
    found["top_k"] = 0 if top_k >= _TOP_K_ALL else top_k
    stop = getattr(params, "stop_strs", None)
    found["stop"] = [stop] if isinstance(stop, str) else list(stop or ())
    found["stop_token_ids"] = sorted(getattr(params, "stop_token_ids", None) or ())
    return found


def end_of(reason: Any, eos_token_ids: frozenset[int]) -> tuple[str, int | str | None]:
    """Returns the final status of a request, and why it stopped.

    Args:
        reason: Its finish reason, as an object or as the client gets it; `None` if unknown.
        eos_token_ids: The tokens that end a text. To stop at one needs no reason.
    """
    if reason is not None and not isinstance(reason, dict):
        reason = reason.to_json()
    if not reason:
        return "FINISHED_ABORTED", None
    kind, matched = reason.get("type"), reason.get("matched")
    if kind == "abort":
        message = reason.get("message")
        return "FINISHED_ABORTED", str(message) if message else None
    if not isinstance(matched, int | str) or matched in eos_token_ids:
        matched = None
    return _ENDS.get(str(kind), "FINISHED_ABORTED"), matched


def no_table() -> Tables:
    """Returns the tables of a request whose pages are reported later."""
    return ([],)
