"""A record as CSV (RFC 4180, but for line ends): a row a sequence, or a row a step.

What is unknown is an empty cell; numbers are plain numbers, times epoch seconds, durations
seconds. Text is safe to open in a spreadsheet: it holds no control characters, and what a
spreadsheet would take for a formula is defused as OWASP advises on CSV injection, by a leading
apostrophe.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterable
from typing import TextIO

import msgspec

from seqtop.export.lifecycle import Run
from seqtop.sanitize import safe_text
from seqtop.sequence import RequestMetrics, latency
from seqtop.state.fields import FIELDS, Value
from seqtop.wire.messages import StepStats

_FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 (full-width ones, too)

_METRICS = [
    field.name for field in dataclasses.fields(RequestMetrics) if not field.name.startswith("spec_")
]
_FIGURES = ("decode_time", "queue_ratio", "execute_ratio")
SEQUENCE_COLUMNS = (
    "incarnation", *FIELDS, "parent_seq_id", "finish_reason", "stop_reason", "cumulative_logprob",
    *_METRICS, *_FIGURES,
)  # fmt: skip
"""Keys as in the filter language, then names as in the data model."""

_STATS = [field.name for field in msgspec.structs.fields(StepStats)]
STEP_COLUMNS = (
    "incarnation", "step", "start_time", "time", "num_scheduled", "num_preempted", *_STATS,
)  # fmt: skip


def write_sequences(runs: Iterable[Run], file: TextIO) -> None:
    """A row for each sequence on record, in order of arrival."""
    _write(file, SEQUENCE_COLUMNS, _sequences(runs))


def write_steps(runs: Iterable[Run], file: TextIO) -> None:
    """A row for each step on record."""
    _write(file, STEP_COLUMNS, _steps(runs))


def _sequences(runs: Iterable[Run]) -> Iterable[list[Value]]:
    for run in runs:
        for life in run.lives.values():
            request, metrics = life.request, life.request.metrics
            figures = [
                latency.decode_time(metrics),
                latency.queue_ratio(metrics),
                latency.execute_ratio(metrics),
            ]
            for sequence in life.sequences:
                yield [
                    run.incarnation,
                    *(field.value(request, sequence, life.until) for field in FIELDS.values()),
                    sequence.parent_seq_id,
                    request.finish_reason,
                    sequence.stop_reason,
                    sequence.cumulative_logprob,
                    *(getattr(metrics, name) for name in _METRICS),
                    *figures,
                ]


def _steps(runs: Iterable[Run]) -> Iterable[list[Value]]:
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
            ]


def _write(file: TextIO, heading: Iterable[str], rows: Iterable[list[Value]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Value) -> Value:
    if isinstance(value, str):
        text = safe_text(value)
        # Some programs look past blanks, and tabs have become blanks here.
        return f"'{text}" if text.lstrip().startswith(_FORMULA_STARTS) else text
    return None if value is None or not math.isfinite(value) else value
