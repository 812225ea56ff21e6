"""CSV exports (RFC 4180 except for line ends): one row per sequence, or one row per step.

An unknown value is an empty cell. Times are epoch seconds, durations seconds. Text is safe to open
in a spreadsheet: it has no control characters, and a formula gets a leading apostrophe, as OWASP
recommends against CSV injection.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterable
from typing import TextIO

from seqtop.export.lifecycle import EngineRun, RequestLifecycle
from seqtop.sequence import RequestMetrics
from seqtop.state.fields import FIELDS, Value
from seqtop.text.sanitize import safe_text
from seqtop.wire.messages import CudaGraph, StepStats

_FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 (and full-width forms)

_METRICS = [
    field.name for field in dataclasses.fields(RequestMetrics) if not field.name.startswith("spec_")
]
_LATENCIES = ("decode_time", "queue_ratio", "execute_ratio")
SEQUENCE_COLUMNS = (
    "incarnation", *FIELDS, "parent_seq_id", "finish_reason", "stop_reason", "cumulative_logprob",
    *_METRICS, *_LATENCIES,
)  # fmt: skip
"""Keys of the filter language, then names of the data model."""

_STATS = [name for name in StepStats.__struct_fields__ if name != "cuda_graph"]
_GRAPH = CudaGraph.__struct_fields__
STEP_COLUMNS = (
    "incarnation", "step", "start_time", "time", "num_scheduled", "num_preempted", *_STATS,
    *(f"cuda_graph_{name}" for name in _GRAPH),
)  # fmt: skip


def write_sequences(runs: Iterable[EngineRun], file: TextIO) -> None:
    """Writes one row per sequence, in order of arrival."""
    _write(file, SEQUENCE_COLUMNS, _sequences(runs))


def write_steps(runs: Iterable[EngineRun], file: TextIO) -> None:
    """Writes one row per step."""
    _write(file, STEP_COLUMNS, _steps(runs))


def _sequences(runs: Iterable[EngineRun]) -> Iterable[list[Value]]:
    for run in runs:
        for lifecycle in run.requests.values():
            yield from _rows(run, lifecycle)


def _rows(run: EngineRun, lifecycle: RequestLifecycle) -> Iterable[list[Value]]:
    request, latencies = lifecycle.request, lifecycle.latencies()
    for sequence in lifecycle.sequences:
        yield [
            run.incarnation,
            *(field.value(request, sequence, lifecycle.until) for field in FIELDS.values()),
            sequence.parent_seq_id,
            request.finish_reason,
            sequence.stop_reason,
            sequence.cumulative_logprob,
            *(getattr(request.metrics, name) for name in _METRICS),
            *(latencies[name] for name in _LATENCIES),
        ]


def _steps(runs: Iterable[EngineRun]) -> Iterable[list[Value]]:
    for run in runs:
        for step in run.steps:
            yield [
                run.incarnation,
                step.step,
                step.start_time,
                step.time,
                step.num_scheduled,
                step.num_preempted,
                *(getattr(step.stats, name) for name in _STATS),
                *(getattr(step.stats.cuda_graph, name, None) for name in _GRAPH),
            ]


def _write(file: TextIO, heading: Iterable[str], rows: Iterable[list[Value]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows([cell(value) for value in row] for row in rows)


def cell(value: Value) -> Value:
    """Returns a value as it is written: no text is a formula, numbers are finite."""
    if isinstance(value, str):
        text = safe_text(value)
        # Some programs skip leading blanks; safe_text has replaced tabs by blanks.
        return f"'{text}" if text.lstrip().startswith(_FORMULA_STARTS) else text
    return None if value is None or not math.isfinite(value) else value
