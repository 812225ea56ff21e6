"""The summaries of many recordings from their tables in Parquet (`seqtop export --partitioned`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from seqtop.export.parquet import columns
from seqtop.export.report.folder import RecordingSummary
from seqtop.state.slo import Slo
from seqtop.state.wait_causes import cause_in_words
from seqtop.text import format as fmt
from seqtop.whatif.figures import RunFigures, distribution

_OF_OBJECTIVES = {
    "ttft": "ttft_ns",
    "itl": "itl_ns",
    "tpot": "itl_ns",
    "queue": "time_in_queue_ns",
    "e2e": "e2e_latency_ns",
}
"""The column of each figure of an objective."""
_COLUMNS = (
    *("engine_id", "finish_reason", "arrival_time_ns", "last_token_time_ns", "ttft_ns", "itl_ns"),
    *("time_in_queue_ns", "e2e_latency_ns", "num_preemptions", "waiting_ns_by_cause"),
)

_SCHEMA = pa.schema({name: columns("requests")[name] for name in _COLUMNS}.items())


def summarize(path: Path, slo: Slo) -> RecordingSummary:
    """Reads the requests of a recording; a file that cannot be read has a summary that says so."""
    name = unquote(path.stem)
    try:
        table = pq.read_table(path, columns=[*_COLUMNS], partitioning=None)
        rows = table.select(_COLUMNS).cast(_SCHEMA).to_pylist()
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        return RecordingSummary(name=name, problem=f"it cannot be read: {reason}")
    ended = [row for row in rows if row["finish_reason"] not in (None, "abort")]
    begin = min(_known(rows, "arrival_time_ns"), default=None)
    last = max(_known(rows, "last_token_time_ns"), default=None)
    return RecordingSummary(
        name=name,
        engine=next((row["engine_id"] for row in rows if row["engine_id"]), ""),
        start=None if begin is None else begin / 1e9,
        figures=RunFigures(
            makespan=0.0 if begin is None or last is None else (last - begin) / 1e9,
            num_requests=len(ended),
            num_preemptions=sum(_known(rows, "num_preemptions")),
            ttft=distribution(_seconds(rows, "ttft_ns")),
            itl=distribution(_seconds(rows, "itl_ns")),
            num_within_slo=sum(_is_met(row, slo) for row in ended) if slo else None,
        ),
        num_unfinished=sum(row["finish_reason"] is None for row in rows),
        verdict=_verdict(rows),
    )


def _seconds(rows: Sequence[dict[str, Any]], column: str) -> list[float]:
    return [value / 1e9 for value in _known(rows, column)]


def _known(rows: Sequence[dict[str, Any]], column: str) -> list[int]:
    return [row[column] for row in rows if row[column] is not None]


def _is_met(row: dict[str, Any], slo: Slo) -> bool:
    values = {key: row[_OF_OBJECTIVES[key]] for key in slo.limits}
    return all(value is None or value / 1e9 <= slo.limits[key] for key, value in values.items())


def _verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the cause for which requests waited longest, in words; empty if none waited."""
    waited: Counter[str] = Counter()
    for row in rows:
        waited.update({cause: seconds or 0 for cause, seconds in row["waiting_ns_by_cause"] or ()})
    total = sum(waited.values())
    if total <= 0:
        return ""
    ((cause, longest),) = waited.most_common(1)
    return (
        f"requests waited {fmt.seconds(total / 1e9)}, {fmt.percent(longest, total)} of it:"
        f" {cause_in_words(cause).label}"
    )
