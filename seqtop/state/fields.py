"""The fields of a sequence: columns of the table, keys to sort by, terms of filters.

Lengths are tokens unless a field says blocks. Durations are seconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from seqtop.sequence import SequenceStage, SequenceStatus, latency
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.wait_causes import BEHIND, CAUSES, OUTSIDE_STEPS, OWN_TURN, cause_in_words
from seqtop.text import format as fmt
from seqtop.text.column_layout import UNLIMITED, Column, fit

Value: TypeAlias = float | str | None
Getter: TypeAlias = Callable[[RequestState, SequenceState, float], Value]
"""Reads a field of a request and one of its sequences at the engine's time (epoch seconds)."""

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
"""The status word of a sequence that waits after it ran."""

STALLED_SECONDS, STALLED_GAPS = 2.0, 10.0
"""A running sequence is stalled if its last token is older than both: seconds, and the mean time
between its tokens so many times."""

_STATUS_RANK = ["running", "swapped", PREEMPTED, "waiting", "stop", "length", "abort", "ignored"]


@dataclass(frozen=True, kw_only=True)
class Field(Column):
    """A field of a sequence, and its column in a table.

    Declared once here, it can be a column of the sequence table and of `seqtop show`, the key of an
    order, a term of a filter, and a column of the CSV export. The sequence table draws it as a
    figure, unless `seqtop.tui.screens.sequences.cells` has a cell of its own for it.

    Attributes:
        help: A short description for the column chooser and the help.
        value: Reads the field.
        format: Formats a number.
        compact: Whether the sequence table shortens large numbers (`12k`).
        dim_zero: Whether the sequence table shows zero in a dim style.
        order: Reads the value to sort by, where it differs from `value`.
        descending: Whether sorting begins with the largest value.
        grows: Returns whether the value of a sequence grows with time alone; `None` if no value of
            the field does.
        also: Reads a second text that a filter on the field matches.
        is_text: Whether the value is a text, which has no order for filters.
        values: All texts that the field can be, if these are few.
        is_default: Whether the sequence table has the column until the user chooses others.
        is_private: Whether the value is the text of a prompt or an output.
    """

    help: str
    value: Getter
    format: Callable[[float | None], str] = fmt.count
    compact: bool = False
    dim_zero: bool = False
    order: Getter | None = None
    descending: bool = False
    grows: Callable[[RequestState, SequenceState], bool] | None = None
    also: Callable[[SequenceState], str] | None = None
    is_text: bool = False
    values: tuple[str, ...] = ()
    is_default: bool = True
    is_private: bool = False

    def sort_value(self, request: RequestState, sequence: SequenceState, now: float) -> Value:
        """Returns the value to sort by; `None`, also for NaN, sorts last in either direction."""
        value = (self.order or self.value)(request, sequence, now)
        return None if isinstance(value, float) and math.isnan(value) else value


def status_word(request: RequestState, sequence: SequenceState) -> str:
    """Returns the status in one word. A waiting sequence that has run before is preempted."""
    if sequence.status == SequenceStatus.WAITING and request.num_preemptions:
        return PREEMPTED
    return STATUS_WORDS[sequence.status]


def status_words(request: RequestState, sequence: SequenceState) -> tuple[str, str]:
    """Returns the status in one word, and the word that counts preempted sequences as waiting."""
    return status_word(request, sequence), STATUS_WORDS[sequence.status]


def stage(sequence: SequenceState) -> SequenceStage | None:
    """Returns the stage of a running sequence; `None` for any other sequence."""
    if sequence.status != SequenceStatus.RUNNING:
        return None
    if not sequence.output_token_ids or sequence.num_computed_tokens < sequence.num_tokens - 1:
        return SequenceStage.PREFILL
    return SequenceStage.DECODE


def sequence_name(request: RequestState, sequence: SequenceState) -> str:
    """Returns the request id, followed by `/2` for the second of several sequences."""
    if len(request.seq_ids) < 2 or sequence.seq_id not in request.seq_ids:
        return request.request_id
    return f"{request.request_id}/{request.seq_ids.index(sequence.seq_id) + 1}"


def queue_time(request: RequestState, sequence: SequenceState, now: float) -> float | None:
    """Returns the seconds from arrival to the first scheduling, or until now if it waits."""
    metrics = request.metrics
    if metrics.time_in_queue is not None:
        return metrics.time_in_queue
    if metrics.first_scheduled_time is not None:
        return metrics.first_scheduled_time - metrics.arrival_time
    waits = _is_yet_to_be_scheduled(request, sequence)
    return now - metrics.arrival_time if waits else None


def _is_yet_to_be_scheduled(request: RequestState, sequence: SequenceState) -> bool:
    metrics = request.metrics
    has_run = metrics.time_in_queue is not None or metrics.first_scheduled_time is not None
    return not has_run and sequence.status == SequenceStatus.WAITING


def waited(request: RequestState, now: float) -> float:
    """Returns the seconds that a request has waited in the queue, before it ran and later."""
    since = request.wait.since
    return request.wait.total + (now - since if since is not None else 0.0)


def wait_word(request: RequestState, sequence: SequenceState) -> str | None:
    """Returns why a sequence waits, or what blocked its request for the longest time, in one word.

    Time in which nothing blocked it, such as the pause before a step, has no word, nor has time for
    which no reason is known: both are left out. `None` if no reason was published.
    """
    if sequence.status == SequenceStatus.WAITING:
        if sequence.engine_status not in OWN_TURN:
            return cause_in_words(sequence.engine_status).word
        if request.wait_reason is None:
            return BEHIND
        if request.wait_reason.cause != "unknown":
            return CAUSES[request.wait_reason.cause].word
    by_cause = request.wait.by_cause
    known = [cause for cause in by_cause if cause not in OUTSIDE_STEPS and cause != "unknown"]
    return cause_in_words(max(known, key=by_cause.__getitem__)).word if known else None


def token_age(request: RequestState, sequence: SequenceState, now: float) -> float | None:
    """Returns the seconds since the last token of an unfinished sequence that has one.

    `None` if there is none, or if no clock can have measured its time.
    """
    if not _ages(request, sequence):
        return None
    age = now - request.metrics.last_token_time
    return age if math.isfinite(age) else None


def is_prompt_unknown(request: RequestState, sequence: SequenceState) -> bool:
    """Returns whether the prompt may be longer than the part of it that is known."""
    return request.is_prompt_partial and not sequence.output_token_ids


def is_stalled(request: RequestState, sequence: SequenceState, now: float) -> bool:
    """Returns whether a running sequence has had no token for much longer than usual."""
    age = token_age(request, sequence, now)
    if age is None or sequence.status != SequenceStatus.RUNNING:
        return False
    usual = latency.itl_so_far(request.metrics, len(sequence.output_token_ids)) or 0.0
    return age > max(STALLED_SECONDS, STALLED_GAPS * usual)


def _ages(_: RequestState, sequence: SequenceState) -> bool:
    is_finished = SequenceStatus.is_finished(sequence.status)
    return bool(sequence.output_token_ids) and not is_finished


def _waits(request: RequestState, _: SequenceState) -> bool:
    return request.wait.since is not None


def harm(request: RequestState) -> float | None:
    """Returns the seconds by which a request delayed others; `None` if they are unknown."""
    return None if request.harm is None else request.harm + request.harm_estimated


def _hit_share(request: RequestState, sequence: SequenceState, _: float) -> Value:
    """Returns the share of the prompt that was in the prefix cache; `None` before it is known."""
    prompt, is_known = sequence.num_prompt_tokens, request.num_scheduled_steps > 0
    is_known = is_known and not is_prompt_unknown(request, sequence)
    return sequence.num_prompt_hits / prompt if is_known and prompt > 0 else None


def token_rate(request: RequestState, sequence: SequenceState) -> float | None:
    """Returns the output tokens per second, from arrival to the newest; `None` before the first."""
    elapsed = request.metrics.last_token_time - request.metrics.arrival_time
    return (
        len(sequence.output_token_ids) / elapsed
        if sequence.output_token_ids and elapsed > 0
        else None
    )


def _stage_name(_: RequestState, sequence: SequenceState, __: float) -> Value:
    current = stage(sequence)
    return current.name.lower() if current else None


_ALL = (
    Field(
        key="request",
        title="Request",
        help="request id",
        value=lambda r, s, _: sequence_name(r, s),
        width=10,
        max_width=18,
        priority=0,
        right=False,
        is_text=True,
    ),
    Field(
        key="seq",
        title="Seq",
        help="sequence id",
        value=lambda _, s, __: s.seq_id,
        format=str,
        width=5,
        priority=9,
    ),
    Field(
        key="status",
        title="Status",
        help="running, waiting, stop and so on",
        value=lambda r, s, _: status_word(r, s),
        order=lambda r, s, _: _STATUS_RANK.index(status_word(r, s)),
        # "waiting" counts preempted sequences, as vLLM's `num_waiting` and the header do.
        also=lambda s: STATUS_WORDS[s.status],
        values=tuple(_STATUS_RANK),
        width=9,
        priority=0,
        right=False,
        is_text=True,
    ),
    Field(
        key="stage",
        title="Stage",
        help="prefill or decode",
        value=_stage_name,
        values=("prefill", "decode"),
        width=7,
        priority=7,
        right=False,
        is_text=True,
    ),
    Field(
        key="prio",
        title="Prio",
        help="priority, lower first",
        value=lambda r, _, __: r.priority,
        dim_zero=True,
        width=4,
        priority=8,
    ),
    Field(
        key="prompt",
        title="Prompt",
        help="prompt tokens",
        value=lambda r, s, _: None if is_prompt_unknown(r, s) else s.num_prompt_tokens,
        descending=True,
        width=6,
        priority=5,
    ),
    Field(
        key="cached",
        title="Cached",
        help="prompt tokens found in the prefix cache",
        value=lambda _, s, __: s.num_prompt_hits,
        dim_zero=True,
        descending=True,
        width=6,
        priority=5,
    ),
    Field(
        key="computed",
        title="Computed",
        help="tokens in the KV cache, of all tokens",
        value=lambda _, s, __: s.num_computed_tokens,
        descending=True,
        width=15,
        max_width=24,
        priority=3,
        right=False,
    ),
    Field(
        key="out",
        title="Out",
        help="output tokens",
        value=lambda _, s, __: len(s.output_token_ids),
        compact=True,
        dim_zero=True,
        descending=True,
        width=5,
        priority=0,
    ),
    Field(
        key="blocks",
        title="Blk",
        help="KV blocks held",
        value=lambda _, s, __: len(s.block_table),
        compact=True,
        dim_zero=True,
        descending=True,
        width=4,
        priority=2,
    ),
    Field(
        key="tps",
        title="Tok/s",
        help="output tokens per second, from arrival to the newest",
        value=lambda r, s, _: token_rate(r, s),
        format=fmt.rate,
        descending=True,
        width=6,
        priority=6,
    ),
    Field(
        key="ttft",
        title="TTFT",
        help="time to first token",
        value=lambda r, _, __: latency.ttft(r.metrics),
        format=fmt.seconds,
        descending=True,
        width=7,
        priority=1,
    ),
    Field(
        key="itl",
        title="ITL",
        help="mean time between tokens",
        value=lambda r, s, _: latency.itl_so_far(r.metrics, len(s.output_token_ids)),
        format=fmt.seconds,
        descending=True,
        width=7,
        priority=4,
    ),
    Field(
        key="queue",
        title="Queue",
        help="the part of Waited before it was first scheduled, as vLLM's queue time",
        value=queue_time,
        format=fmt.seconds,
        descending=True,
        grows=_is_yet_to_be_scheduled,
        width=7,
        priority=3,
        is_default=False,
    ),
    Field(
        key="waited",
        title="Waited",
        help="time in the queue, also after preemptions",
        value=lambda r, _, now: waited(r, now),
        format=fmt.seconds,
        descending=True,
        grows=_waits,
        width=7,
        priority=1,
    ),
    Field(
        key="why",
        title="Why",
        help="why it waits or waited: blocks, budget, seqs, queue",
        value=lambda r, s, _: wait_word(r, s),
        width=6,
        priority=1,
        right=False,
        is_text=True,
    ),
    Field(
        key="age",
        title="Age",
        help="time since the last token; ! if it is stalled",
        value=token_age,
        format=fmt.growing,
        descending=True,
        grows=_ages,
        width=6,
        priority=4,
    ),
    Field(
        key="hit",
        title="Hit",
        help="share of the prompt found in the prefix cache",
        value=_hit_share,
        format=fmt.percent,
        descending=True,
        width=4,
        priority=4,
    ),
    Field(
        key="preempt",
        title="Pre",
        help="preemptions",
        value=lambda r, _, __: r.num_preemptions,
        compact=True,
        dim_zero=True,
        descending=True,
        width=3,
        priority=2,
    ),
    Field(
        key="text",
        title="Text",
        help="generated text",
        value=lambda _, s, __: s.text,
        width=14,
        min_width=1,
        max_width=UNLIMITED,
        share=1 / 5,
        priority=0,
        right=False,
        is_text=True,
        is_private=True,
    ),
    Field(
        key="total",
        title="Total",
        help="prompt and output tokens",
        value=lambda r, s, _: None if is_prompt_unknown(r, s) else s.num_tokens,
        compact=True,
        descending=True,
        width=6,
        priority=6,
        is_default=False,
    ),
    Field(
        key="lost",
        title="Lost",
        help="tokens lost to preemption",
        value=lambda r, _, __: r.num_lost_tokens,
        compact=True,
        dim_zero=True,
        descending=True,
        width=5,
        priority=6,
        is_default=False,
    ),
    Field(
        key="steps",
        title="Steps",
        help="steps it was scheduled in",
        value=lambda r, _, __: r.num_scheduled_steps,
        dim_zero=True,
        descending=True,
        width=6,
        priority=7,
        is_default=False,
    ),
    Field(
        key="e2e",
        title="E2E",
        help="arrival to end",
        value=lambda r, _, __: latency.e2e_latency(r.metrics),
        format=fmt.seconds,
        descending=True,
        width=7,
        priority=3,
        is_default=False,
    ),
    Field(
        key="harm",
        title="Harm",
        help="delay of others: waits for what it held; steps that it made longer, as estimated",
        value=lambda r, _, __: harm(r),
        format=fmt.seconds,
        descending=True,
        width=7,
        priority=3,
        is_default=False,
    ),
    Field(
        key="id",
        title="Id",
        help="request id",
        value=lambda r, _, __: r.request_id,
        width=16,
        priority=6,
        right=False,
        is_text=True,
        is_default=False,
    ),
    Field(
        key="lora",
        title="LoRA",
        help="LoRA adapter",
        value=lambda r, _, __: r.lora,
        width=10,
        max_width=18,
        priority=7,
        right=False,
        is_text=True,
        is_default=False,
    ),
    Field(
        key="prompt_text",
        title="Prompt text",
        help="the prompt's text",
        value=lambda r, _, __: r.prompt,
        width=24,
        priority=8,
        right=False,
        is_text=True,
        is_default=False,
        is_private=True,
    ),
)
FIELDS = {field.key: field for field in _ALL}
"""All fields by key, in the order of their columns."""
FIELDS_BY_NAME = {field.title.lower(): field for field in _ALL} | FIELDS
"""All fields by the names that a filter may use: the titles of columns in lower case, and keys."""
DEFAULT_COLUMNS = tuple(field.key for field in _ALL if field.is_default)
"""The keys of the columns of the sequence table until the user chooses others; `text`, which takes
the rest of the width, is the last."""


@lru_cache(maxsize=64)
def arrange(
    width: int, keys: tuple[str, ...] = DEFAULT_COLUMNS, sort_key: str = ""
) -> tuple[Field, ...]:
    """Returns those of the columns `keys` that fit into `width` cells, one cell apart.

    The column that the rows are sorted by stays, and is added if it is not one of `keys`.
    """
    if sort_key and sort_key not in keys:
        at = keys.index("text") if "text" in keys else len(keys)
        keys = (*keys[:at], sort_key, *keys[at:])
    return fit([FIELDS[key] for key in keys], width, keep=(sort_key,))
