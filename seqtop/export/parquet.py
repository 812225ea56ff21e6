"""Parquet files: tables of requests, sequences, steps, tokens and events, for DuckDB and others.

Names are those of the data model. Times are whole nanoseconds since the epoch and durations whole
nanoseconds; both say so by `_ns`. An unknown value is null. Tokens and events are written while the
recording is read, so they take no memory.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from seqtop.export import nanoseconds
from seqtop.export.csv_rows import STEP_TOTALS
from seqtop.export.lifecycle import (
    EngineRun,
    RecordedStep,
    RequestLifecycle,
    read_runs,
    redacted,
)
from seqtop.export.measured import MeasuredRequests
from seqtop.history.replay import ShowProgress, no_progress
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.process import files
from seqtop.state import EngineState, SequenceState
from seqtop.wire.messages import (
    EngineInfo,
    EngineStopped,
    Event,
    RequestArrived,
    RequestFinished,
    Step,
    StepStats,
)

SCHEMA_VERSION = 1
"""The version in each file's metadata. Added columns do not change it; other changes do."""
TABLES = ("requests", "sequences", "steps", "tokens", "events")

_VIEWS = "".join(
    f"create or replace view {name} as select *"
    f" from read_parquet('{name}/*/*/*.parquet', hive_partitioning = true, union_by_name = true);\n"
    for name in TABLES
)
"""The views for DuckDB on the tables of many recordings."""
_NO_NAME = "__HIVE_DEFAULT_PARTITION__"
"""Hive's value of a partition for null."""
_MAX_NAME = 60
"""Characters of the names of engines and runs in paths."""
_LATEST = 253_402_300_799.0
"""The last second that a date can have."""
_ROWS = 2**16
"""The rows that are kept until they are written together."""
_BITS = {pa.int32(): 31, pa.int64(): 63}

Row: TypeAlias = dict[str, Any]

_TEXT, _COUNT, _TIME, _SHARE = pa.string(), pa.int64(), pa.int64(), pa.float64()
_BLOCKS = pa.list_(pa.int32())
_ENGINE = {"engine_id": _TEXT, "incarnation": _TEXT, "data_parallel_rank": _COUNT}
"""The first columns of every table."""

_REQUEST_TIMES = (
    "arrival_time", "first_scheduled_time", "first_token_time", "last_token_time", "finished_time",
)  # fmt: skip
_STEP_TIMES = {"scheduler_time": "scheduler_ns", "model_forward_time": "model_forward_ns"} | {
    "model_execute_time": "model_execute_ns",
    "paced_time": "paced_ns",
}
_STEP_COUNTS = {
    name: f"{name}_total" if name in STEP_TOTALS else name
    for name in StepStats.__struct_fields__
    if name not in {"cuda_graph", *_STEP_TIMES}
}
"""Columns by the field of `StepStats`; what counts from the engine's start on is a total."""

_SCHEMAS = {
    "requests": {
        "request_id": _TEXT,
        "parent_request_id": _TEXT,
        "finish_reason": _TEXT,
        "priority": _COUNT,
        "lora": _TEXT,
        "arrival_time_ns": _TIME,
        "first_scheduled_time_ns": _TIME,
        "first_token_time_ns": _TIME,
        "last_token_time_ns": _TIME,
        "finished_time_ns": _TIME,
        "ttft_ns": _TIME,
        "itl_ns": _TIME,
        "e2e_latency_ns": _TIME,
        "decode_time_ns": _TIME,
        "time_in_queue_ns": _TIME,
        "waiting_ns": _TIME,
        "waiting_ns_by_cause": pa.map_(_TEXT, _TIME),
        "scheduler_ns": _TIME,
        "model_forward_ns": _TIME,
        "model_execute_ns": _TIME,
        "num_prompt_tokens": _COUNT,
        "num_output_tokens": _COUNT,
        "num_scheduled_steps": _COUNT,
        "num_preemptions": _COUNT,
        "num_lost_tokens": _COUNT,
        "measured_by": _TEXT,
        "measured_ttft_ns": _TIME,
        "measured_e2e_latency_ns": _TIME,
        "front_end_time_ns": _TIME,
        "session_id": _TEXT,
        "turn": _COUNT,
        "tool_pause_ns": _TIME,
        "prompt": _TEXT,
        "prompt_token_ids": _BLOCKS,
    },
    "sequences": {
        "request_id": _TEXT,
        "seq_id": _COUNT,
        "parent_seq_id": _COUNT,
        "status": _TEXT,
        "num_prompt_tokens": _COUNT,
        "num_output_tokens": _COUNT,
        "num_computed_tokens": _COUNT,
        "num_cached_tokens": _COUNT,
        "num_prompt_hits": _COUNT,
        "num_draft_tokens": _COUNT,
        "num_accepted_tokens": _COUNT,
        "cumulative_logprob": _SHARE,
        "block_table": _BLOCKS,
        "text": _TEXT,
        "output_token_ids": _BLOCKS,
    },
    "steps": {
        "step": _COUNT,
        "start_time_ns": _TIME,
        "end_time_ns": _TIME,
        "num_scheduled_requests": _COUNT,
        "num_preempted_requests": _COUNT,
        "limited_by": _TEXT,
        **dict.fromkeys(_STEP_COUNTS.values(), _COUNT),
        **dict.fromkeys(_STEP_TIMES.values(), _TIME),
        "cuda_graph_mode": _TEXT,
        "cuda_graph_num_padded_tokens": _COUNT,
    },
    "tokens": {
        "request_id": _TEXT,
        "seq_id": _COUNT,
        "position": _COUNT,
        "step": _COUNT,
        "time_ns": _TIME,
        "token_id": _COUNT,
        "logprob": _SHARE,
    },
    "events": {
        "time_ns": _TIME,
        "step": _COUNT,
        "kind": _TEXT,
        "request_id": _TEXT,
        "cause": _TEXT,
        "other_request_id": _TEXT,
        "num_tokens": _COUNT,
        "num_missing": _COUNT,
    },
}
"""The columns of each table after those of the engine."""


def columns(table: str) -> dict[str, pa.DataType]:
    """Returns the columns of a table, with their types."""
    return {**_ENGINE, **_SCHEMAS[table]}


def write(
    directory: Path,
    timeline: Timeline,
    *,
    redact: bool,
    overwrite: bool,
    partitioned: bool = False,
    measured: MeasuredRequests | None = None,
    progress: ShowProgress = no_progress,
) -> dict[str, int]:
    """Writes a file for each table; returns the number of rows of each.

    Args:
        directory: The folder of the files, which is created if there is none.
        partitioned: Writes each file below folders of its table, its date and its engine, as Hive
            names them, so that `directory` can have the tables of many recordings.
        timeline: A recording.
        redact: Leaves texts and tokens out.
        overwrite: Replaces files.
        measured: What others measured.
        progress: Shows the part of the timeline that has been read.

    Raises:
        FileExistsError: A file exists and is not to be replaced.
        OSError: A file cannot be written.
        RecordingError: A part of the timeline cannot be read.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    directory.mkdir(mode=0o700, exist_ok=True)
    paths = {name: directory / f"{name}.parquet" for name in TABLES}
    if partitioned:
        place = _place(timeline)
        paths = {name: directory / name / place for name in TABLES}
        for path in paths.values():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.writing(directory / "views.sql", overwrite=True) as file:
            file.write(_VIEWS.encode())
    with contextlib.ExitStack() as stack:
        tables = {
            name: stack.enter_context(
                _Table(
                    stack.enter_context(files.writing(path, overwrite=overwrite)), _SCHEMAS[name]
                )
            )
            for name, path in paths.items()
        }

        def observe(event: Event, state: EngineState) -> None:
            _add_events(tables["events"], event, state)
            if isinstance(event, Step):
                _add_tokens(tables["tokens"], event, state, redact=redact)

        runs = read_runs(timeline, observe, progress)
        for run in redacted(runs) if redact else runs:
            _add_run(tables, run, measured)
    return {name: table.num_rows for name, table in tables.items()}


def _place(timeline: Timeline) -> Path:
    """Returns the path of a recording's files below the folder of a table.

    It is the same when the recording, or a longer one of the same run, is exported again.

    Raises:
        RecordingError: It does not describe its engine.
    """
    begin = timeline.at(timeline.first)
    info = begin.info or timeline.at(min(timeline.first + 1, timeline.last)).info
    if info is None:
        raise RecordingError("the recording does not describe its engine, so it has no partition")
    start = min(max(begin.time or info.start_time, 0.0), _LATEST)
    engine = quote(info.engine_id[:_MAX_NAME], safe="") or _NO_NAME
    run = quote(info.incarnation[:_MAX_NAME], safe="") or "run"
    return Path(
        f"date={datetime.fromtimestamp(start, UTC).date()}",
        f"engine={engine}",
        f"{run}-{int(start * 1e3)}.parquet",
    )


class _Table(contextlib.AbstractContextManager["_Table"]):
    """A Parquet file that is written in groups of rows."""

    def __init__(self, file: Any, columns: Mapping[str, pa.DataType]) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in (*_ENGINE, *columns)}
        self._schema = pa.schema(
            {**_ENGINE, **columns}.items(),
            {"seqtop_schema_version": str(SCHEMA_VERSION)},
        )
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self.num_rows = 0

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with contextlib.closing(self._writer):
            if error is None:
                self._flush()

    def add(self, info: EngineInfo | None, row: Row) -> None:
        """Adds a row; a column that it lacks is null."""
        if info is not None:
            row |= {name: getattr(info, name) for name in _ENGINE}
        for name, values in self._columns.items():
            values.append(row.get(name))
        self.num_rows += 1
        if not self.num_rows % _ROWS:
            self._flush()

    def _flush(self) -> None:
        arrays = [
            pa.array(list(map(_converter(field.type), self._columns[field.name])), field.type)
            for field in self._schema
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        for values in self._columns.values():
            values.clear()


def _converter(type_: pa.DataType) -> Callable[[Any], Any]:
    """Returns the function that turns what an engine may say into a value of a type, or null."""
    if type_ == _BLOCKS:
        item = _converter(pa.int32())
        return lambda values: None if values is None else list(map(item, values))
    if type_ in _BITS:
        limit = 2 ** _BITS[type_]
        return lambda value: value if value is not None and -limit <= value < limit else None
    if type_ == _SHARE:
        return lambda value: value if value is not None and math.isfinite(value) else None
    return lambda value: value


def _add_run(
    tables: Mapping[str, _Table], run: EngineRun, measured: MeasuredRequests | None
) -> None:
    for lifecycle in run.requests.values():
        columns = {} if measured is None else _measured(measured.columns(lifecycle))
        tables["requests"].add(run.info, _request(lifecycle, run.info) | columns)
        for sequence in lifecycle.sequences:
            tables["sequences"].add(run.info, _sequence(sequence, run.info))
    for step in run.steps:
        tables["steps"].add(run.info, _step(step))


def _request(lifecycle: RequestLifecycle, info: EngineInfo | None) -> Row:
    request, metrics = lifecycle.request, lifecycle.request.metrics
    wait, latencies = lifecycle.wait, lifecycle.latencies()
    row = {
        name: getattr(request, name)
        for name in _SCHEMAS["requests"]
        if hasattr(request, name) and name != "prompt_token_ids"
    }
    row |= {f"{name}_ns": nanoseconds.of_time(getattr(metrics, name)) for name in _REQUEST_TIMES}
    durations = {
        **{name: latencies[name] for name in ("ttft", "itl", "e2e_latency", "decode_time")},
        "time_in_queue": metrics.time_in_queue,
        "waiting": wait.total,
        "scheduler": metrics.scheduler_time,
        "model_forward": metrics.model_forward_time,
        "model_execute": metrics.model_execute_time,
    }
    row |= {f"{name}_ns": nanoseconds.of_duration(value) for name, value in durations.items()}
    row["waiting_ns_by_cause"] = [
        (cause, nanoseconds.of_duration(seconds)) for cause, seconds in wait.by_cause.items()
    ]
    row["num_output_tokens"] = sum(len(it.output_token_ids) for it in lifecycle.sequences)
    row["prompt_token_ids"] = _tokens(request.prompt_token_ids, info)
    return row


def _measured(columns: Mapping[str, Any]) -> Row:
    plain = ("measured_by", "session_id", "turn")
    return {
        **{name: columns[name] for name in plain},
        **{
            f"{name}_ns": nanoseconds.of_difference(value)
            for name, value in columns.items()
            if name not in plain
        },
    }


def _sequence(sequence: SequenceState, info: EngineInfo | None) -> Row:
    row = {
        name: getattr(sequence, name)
        for name in _SCHEMAS["sequences"]
        if hasattr(sequence, name) and name != "output_token_ids"
    }
    is_known = info is None or not info.redacted
    return row | {
        "status": sequence.status.name,
        "num_output_tokens": len(sequence.output_token_ids),
        "output_token_ids": _tokens(sequence.output_token_ids, info),
        "text": sequence.text if is_known else None,
        "cumulative_logprob": sequence.cumulative_logprob if is_known else None,
    }


def _tokens(token_ids: Any, info: EngineInfo | None) -> list[int] | None:
    """Returns token ids; `None` if redaction has removed them."""
    is_known = info is None or not info.redacted
    return token_ids.tolist() if is_known else None


def _step(step: RecordedStep) -> Row:
    stats = step.stats
    graph = stats.cuda_graph
    return {
        "step": step.step,
        "start_time_ns": nanoseconds.of_time(step.start_time),
        "end_time_ns": nanoseconds.of_time(step.time),
        "num_scheduled_requests": step.num_scheduled,
        "num_preempted_requests": step.num_preempted,
        "limited_by": step.limited_by,
        **{column: getattr(stats, name) for name, column in _STEP_COUNTS.items()},
        **{
            column: nanoseconds.of_duration(getattr(stats, name))
            for name, column in _STEP_TIMES.items()
        },
        "cuda_graph_mode": graph and graph.mode,
        "cuda_graph_num_padded_tokens": graph and graph.num_padded_tokens,
    }


def _add_tokens(table: _Table, step: Step, state: EngineState, *, redact: bool) -> None:
    """Adds the tokens that a step sampled, whose state is that after the step."""
    info = state.info
    is_known = not redact and not (info and info.redacted)
    for update in step.sequences:
        sequence = state.sequences.get(update.seq_id)
        if sequence is None or not update.new_token_ids:
            continue
        first = len(sequence.output_token_ids) - len(update.new_token_ids)
        logprobs = update.new_logprobs
        for number, token_id in enumerate(update.new_token_ids):
            row = {
                "request_id": sequence.request_id,
                "seq_id": sequence.seq_id,
                "position": first + number,
                "step": step.step,
                "time_ns": nanoseconds.of_time(step.time),
                "token_id": token_id if is_known else None,
                "logprob": logprobs[number] if is_known and number < len(logprobs) else None,
            }
            table.add(info, row)


def _add_events(table: _Table, event: Event, state: EngineState) -> None:
    """Adds what an event says about single requests, whose state is that after the event."""

    def add(kind: str, time: float, request_id: str | None, **values: Any) -> None:
        row = {"time_ns": nanoseconds.of_time(time), "step": state.step, "kind": kind}
        table.add(state.info, {**row, "request_id": request_id, **values})

    match event:
        case RequestArrived():
            add("arrived", event.arrival_time, event.request_id, num_tokens=event.num_prompt_tokens)
        case Step():
            start = event.start_time
            for preemption in event.preemptions:
                add(
                    "preempted",
                    start,
                    preemption.request_id,
                    cause=preemption.mode,
                    other_request_id=preemption.for_request_id,
                    num_tokens=preemption.num_lost_tokens,
                )
            for reason in event.wait_reasons:
                missing = reason.num_missing or None
                add("waits", start, reason.request_id, cause=reason.cause, num_missing=missing)
            for call in event.control_calls:
                add("control_call", event.time, None, cause=call.name)
        case RequestFinished():
            request = state.requests.get(event.request_id)
            reason_of_end = None if request is None else request.finish_reason
            add("finished", event.time, event.request_id, cause=reason_of_end)
        case EngineStopped():
            add("engine_stopped", event.time, None)
        case _:
            pass
