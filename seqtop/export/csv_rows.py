r"""CSV exports (RFC 4180 except for line ends): one row per sequence, or one row per step.

An unknown value is an empty cell. Times are seconds from `start_epoch`, durations seconds. Text is
complete, and safe to open in a terminal or a spreadsheet. Control characters other than tabs and
line breaks, and those that change the direction of text, are written like `\u001b`; so is a
backslash before a `u`. A text that a spreadsheet would take for a formula gets a leading
apostrophe, as OWASP recommends against CSV injection; so does one that begins with an apostrophe.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Iterable
from typing import TextIO

from seqtop.export.lifecycle import EngineRun, RequestLifecycle, start_time
from seqtop.export.measured import COLUMNS as MEASURED_COLUMNS
from seqtop.export.measured import MeasuredRequests
from seqtop.sequence import RequestMetrics
from seqtop.state.fields import FIELDS, Value
from seqtop.wire.messages import CudaGraph, StepStats

_MARKED_STARTS = ("'", "=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 (and full-width forms)
_ESCAPED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]|\\(?=u)"
)

_NAMES = {
    "id": "request_id",
    "seq": "seq_id",
    "prio": "priority",
    "prompt": "num_prompt_tokens",
    "cached": "num_prompt_hits",
    "computed": "num_computed_tokens",
    "out": "num_output_tokens",
    "blocks": "num_blocks",
    "tps": "output_tokens_per_second",
    "e2e": "e2e_latency",
    "waited": "waiting_time",
    "why": "wait_cause",
    "age": "time_since_last_token",
    "hit": "prompt_hit_share",
    "preempt": "num_preemptions",
    "total": "num_tokens",
    "lost": "num_lost_tokens",
    "steps": "num_scheduled_steps",
    "prompt_text": "prompt",
}
"""The names of columns whose keys are too short for a file; others have the key of the field."""
_OMITTED = {"request", "queue"}
"""Fields that `request_id` with `seq_id`, and `time_in_queue`, say better."""
_LAST = ("text", "prompt_text")
"""Fields of any length, which are the last columns."""
_FIELDS = ("id", *(key for key in FIELDS if key not in {"id", *_OMITTED, *_LAST}))
_TIMES = (
    "arrival_time", "first_scheduled_time", "first_token_time", "last_token_time", "finished_time",
)  # fmt: skip
_DURATIONS = [
    field.name
    for field in dataclasses.fields(RequestMetrics)
    if field.name not in _TIMES and not field.name.startswith("spec_")
]
_LATENCIES = ("decode_time", "queue_ratio", "execute_ratio")
SEQUENCE_COLUMNS = (
    "incarnation", "start_epoch", *(_NAMES.get(key, key) for key in _FIELDS), "parent_seq_id",
    "finish_reason", "stop_reason", "cumulative_logprob", *_TIMES, *_DURATIONS, *_LATENCIES,
    *(_NAMES.get(key, key) for key in _LAST),
)  # fmt: skip

STEP_TOTALS = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
"""Figures of `StepStats` that count from the engine's start on."""
_STATS = [name for name in StepStats.__struct_fields__ if name != "cuda_graph"]
_GRAPH = CudaGraph.__struct_fields__
STEP_COLUMNS = (
    "incarnation", "start_epoch", "step", "start_time", "end_time", "num_scheduled_requests",
    "num_preempted_requests", "limited_by",
    *(f"{name}_total" if name in STEP_TOTALS else name for name in _STATS),
    *(f"cuda_graph_{name}" for name in _GRAPH),
)  # fmt: skip


def write_sequences(
    runs: list[EngineRun], file: TextIO, measured: MeasuredRequests | None = None
) -> None:
    """Writes one row per sequence, in order of arrival.

    Args:
        runs: The recording.
        file: The file.
        measured: What others measured; adds `seqtop.export.measured.COLUMNS`.
    """
    heading = [*SEQUENCE_COLUMNS, *(() if measured is None else MEASURED_COLUMNS)]
    _write(file, heading, _sequences(runs, measured))


def write_steps(runs: list[EngineRun], file: TextIO) -> None:
    """Writes one row per step."""
    _write(file, STEP_COLUMNS, _steps(runs))


def _sequences(runs: list[EngineRun], measured: MeasuredRequests | None) -> Iterable[list[Value]]:
    start = start_time(runs)
    for run in runs:
        for lifecycle in run.requests.values():
            columns = [] if measured is None else [*measured.columns(lifecycle).values()]
            for row in _rows(run, lifecycle, start):
                yield [*row, *columns]


def _rows(run: EngineRun, lifecycle: RequestLifecycle, start: float) -> Iterable[list[Value]]:
    request, latencies = lifecycle.request, lifecycle.latencies()
    for sequence in lifecycle.sequences:
        values = {
            key: field.value(request, sequence, lifecycle.until) for key, field in FIELDS.items()
        }
        yield [
            run.incarnation,
            start,
            *(values[key] for key in _FIELDS),
            sequence.parent_seq_id,
            request.finish_reason,
            sequence.stop_reason,
            sequence.cumulative_logprob,
            *(_since(getattr(request.metrics, name), start) for name in _TIMES),
            *(getattr(request.metrics, name) for name in _DURATIONS),
            *(latencies[name] for name in _LATENCIES),
            *(values[key] for key in _LAST),
        ]


def _steps(runs: list[EngineRun]) -> Iterable[list[Value]]:
    start = start_time(runs)
    for run in runs:
        for step in run.steps:
            yield [
                run.incarnation,
                start,
                step.step,
                _since(step.start_time, start),
                _since(step.time, start),
                step.num_scheduled,
                step.num_preempted,
                step.limited_by or "nothing_waits",
                *(getattr(step.stats, name) for name in _STATS),
                *(getattr(step.stats.cuda_graph, name, None) for name in _GRAPH),
            ]


def _since(time: float | None, start: float) -> float | None:
    """Returns the seconds from `start` to a time, in whole nanoseconds, below the clock's noise."""
    return None if time is None else round(time - start, 9)


def _write(file: TextIO, heading: Iterable[str], rows: Iterable[list[Value]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows([cell(value) for value in row] for row in rows)


def cell(value: Value) -> Value:
    """Returns a value as it is written: no text is a formula, numbers are finite."""
    if isinstance(value, str):
        text = _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", value)
        # Some programs skip leading blanks.
        return f"'{text}" if text.lstrip().startswith(_MARKED_STARTS) else text
    return None if value is None or not math.isfinite(value) else value
