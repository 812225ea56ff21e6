"""What can be known about a sequence, by name: the columns of the table, the keys to sort by, the
fields to filter on. Pure functions of the state; nothing here draws.

Lengths are tokens unless a column says blocks, durations are seconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from seqtop.sequence import SequenceStage, SequenceStatus, latency
from seqtop.state.model import RequestState, SequenceState

Value: TypeAlias = float | str | None
Getter: TypeAlias = Callable[[RequestState, SequenceState, float], Value]
"""From a request, one of its sequences and the engine's time to what the column shows."""

STATUS_WORDS = {
    SequenceStatus.RUNNING: "running",
    SequenceStatus.WAITING: "waiting",
    SequenceStatus.SWAPPED: "swapped",
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_IGNORED: "ignored",
}
PREEMPTED = "preempt"
"""The word for a sequence that waits again after having run."""

_STATUS_RANK = ["running", "swapped", PREEMPTED, "waiting", "stop", "length", "abort", "ignored"]


@dataclass(frozen=True)
class Field:
    """One thing to know about a sequence.

    Attributes:
        about: A few words for whoever chooses among columns.
        order: What to sort by, where it differs from `value`.
        descending: Whether the interesting end is the largest.
        grows: Whether the value of a sequence grows just now while nothing happens to it, as fast
            as time passes; `None` if that of none ever does.
        values: Every text it can be, where these are few.
    """

    key: str
    title: str
    about: str
    value: Getter
    order: Getter | None = None
    descending: bool = False
    grows: Callable[[RequestState, SequenceState], bool] | None = None
    values: tuple[str, ...] = ()

    def sort_value(self, request: RequestState, sequence: SequenceState, now: float) -> Value:
        """What to compare rows by; `None` (also for NaN) sorts last in either direction."""
        found = (self.order or self.value)(request, sequence, now)
        return None if isinstance(found, float) and math.isnan(found) else found


def status_word(request: RequestState, sequence: SequenceState) -> str:
    """The status in one word; a waiting sequence that has run before is preempted."""
    if sequence.status == SequenceStatus.WAITING and request.num_preemptions:
        return PREEMPTED
    return STATUS_WORDS[sequence.status]


def stage(sequence: SequenceState) -> SequenceStage | None:
    """Whether a running sequence still computes known tokens; `None` unless it runs."""
    if sequence.status != SequenceStatus.RUNNING:
        return None
    if not sequence.output_token_ids or sequence.num_computed_tokens < sequence.num_tokens - 1:
        return SequenceStage.PREFILL
    return SequenceStage.DECODE


def sequence_name(request: RequestState, sequence: SequenceState) -> str:
    """The request id, followed by `/2` for the second of several sequences."""
    if len(request.seq_ids) < 2 or sequence.seq_id not in request.seq_ids:
        return request.request_id
    return f"{request.request_id}/{request.seq_ids.index(sequence.seq_id) + 1}"


def queue_time(request: RequestState, sequence: SequenceState, now: float) -> float | None:
    """Seconds from arrival to being scheduled for the first time, or until now if it waits."""
    metrics = request.metrics
    if metrics.time_in_queue is not None:
        return metrics.time_in_queue
    if metrics.first_scheduled_time is not None:
        return metrics.first_scheduled_time - metrics.arrival_time
    waits = _is_yet_to_be_scheduled(request, sequence)
    return now - metrics.arrival_time if waits else None


def _is_yet_to_be_scheduled(request: RequestState, sequence: SequenceState) -> bool:
    metrics = request.metrics
    known = metrics.time_in_queue is not None or metrics.first_scheduled_time is not None
    return not known and sequence.status == SequenceStatus.WAITING


def token_rate(request: RequestState, sequence: SequenceState) -> float | None:
    """Output tokens per second, from arrival to the newest; unknown before the first."""
    elapsed = request.metrics.last_token_time - request.metrics.arrival_time
    return (
        len(sequence.output_token_ids) / elapsed
        if sequence.output_token_ids and elapsed > 0
        else None
    )


def _stage_name(_: RequestState, sequence: SequenceState, __: float) -> Value:
    found = stage(sequence)
    return found.name.lower() if found else None


COLUMNS = (
    Field("request", "Request", "request id", lambda r, s, _: sequence_name(r, s)),
    Field("seq", "Seq", "sequence id", lambda _, s, __: s.seq_id),
    Field(
        "status",
        "Status",
        "running, waiting, stop and so on",
        lambda r, s, _: status_word(r, s),
        order=lambda r, s, _: _STATUS_RANK.index(status_word(r, s)),
        values=tuple(_STATUS_RANK),
    ),
    Field("stage", "Stage", "prefill or decode", _stage_name, values=("prefill", "decode")),
    Field("prio", "Prio", "priority, lower first", lambda r, _, __: r.priority),
    Field("prompt", "Prompt", "prompt tokens", lambda _, s, __: s.num_prompt_tokens, None, True),
    Field(
        "cached", "Cached", "prefix-cached tokens", lambda _, s, __: s.num_cached_tokens, None, True
    ),
    Field(
        "computed",
        "Computed",
        "tokens in the KV cache, of all tokens",
        lambda _, s, __: s.num_computed_tokens,
        descending=True,
    ),
    Field("out", "Out", "output tokens", lambda _, s, __: len(s.output_token_ids), None, True),
    Field("blocks", "Blk", "KV blocks held", lambda _, s, __: len(s.block_table), None, True),
    Field(
        "tps",
        "Tok/s",
        "output tokens per second, from arrival to the newest",
        lambda r, s, _: token_rate(r, s),
        descending=True,
    ),
    Field(
        "ttft", "TTFT", "time to first token", lambda r, _, __: latency.ttft(r.metrics), None, True
    ),
    Field(
        "itl",
        "ITL",
        "mean time between tokens",
        lambda r, s, _: latency.itl_so_far(r.metrics, len(s.output_token_ids)),
        descending=True,
    ),
    Field(
        "queue",
        "Queue",
        "time until first scheduled",
        queue_time,
        descending=True,
        grows=_is_yet_to_be_scheduled,
    ),
    Field("preempt", "Pre", "preemptions", lambda r, _, __: r.num_preemptions, None, True),
    Field("text", "Text", "generated text", lambda _, s, __: s.text),
)
"""The table's columns, in their order on the screen."""

FIELDS = {column.key: column for column in COLUMNS} | {
    column.key: column
    for column in (
        Field(
            "total", "Total", "prompt and output tokens", lambda _, s, __: s.num_tokens, None, True
        ),
        Field(
            "lost",
            "Lost",
            "tokens lost to preemption",
            lambda r, _, __: r.num_lost_tokens,
            None,
            True,
        ),
        Field(
            "steps",
            "Steps",
            "steps it was scheduled in",
            lambda r, _, __: r.num_scheduled_steps,
            None,
            True,
        ),
        Field(
            "e2e",
            "E2E",
            "arrival to end",
            lambda r, _, __: latency.e2e_latency(r.metrics),
            None,
            True,
        ),
        Field("id", "Id", "request id", lambda r, _, __: r.request_id),
        Field("ask", "Prompt text", "the prompt's text", lambda r, _, __: r.prompt),
    )
}
"""Everything a filter can name: the columns and some figures too rare for one."""
