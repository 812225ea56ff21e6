"""The summaries of many recordings: their order, the sentence on them, and those from tables."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqtop.export.parquet import columns
from seqtop.export.report import folder, tables
from seqtop.export.report.folder import RecordingSummary
from seqtop.state.slo import Slo, parse
from seqtop.text import format as fmt
from seqtop.whatif.figures import Distribution, RunFigures, distribution
from tests.export.report.test_folder import rows_of

SLO = parse("ttft=0.5")


def summary(
    name: str, met: int | None = None, *, of: int = 200, ttft: float | None = 1.0, **fields: Any
) -> RecordingSummary:
    figures = RunFigures(num_requests=of, num_within_slo=met, ttft=Distribution(p99=ttft))
    return RecordingSummary(name=name, figures=figures, **fields)


@pytest.mark.parametrize(
    ("summaries", "slo", "expected"),
    [
        ([summary("a")], Slo(), "No objectives were given, so the longest TTFT comes first"),
        (
            [summary("a", 0, of=0)],
            SLO,
            "No request ended, so nothing is known of TTFT 500 ms for 99% of the requests",
        ),
        (
            [summary("a", 198), summary("b", 200), summary("c", 0, of=0)],
            SLO,
            ("All of 2 recordings with ended requests keep TTFT 500 ms for 99% of the requests"),
        ),
        (
            [
                summary("a", 0, engine="x", verdict="limited by a"),
                summary("b", 197, engine="y"),
                summary("c", 196, engine="y"),
                summary("d", 200, engine="z"),
            ],
            SLO,
            (
                "3 of 4 recordings, of 2 engines, miss TTFT 500 ms for 99% of the requests; the"
                " worst is a of x: 0.0%, limited by a"
            ),
        ),
        (
            [summary("b", 197)],
            SLO,
            (
                "1 of 1 recordings, of 1 engine, miss TTFT 500 ms for 99% of the requests; the"
                " worst is b of an unknown engine: 98.5%"
            ),
        ),
    ],
)
def test_a_sentence_on_many_recordings(
    summaries: list[RecordingSummary], slo: Slo, expected: str
) -> None:
    assert folder.sentence(summaries, slo) == expected


def test_the_rows_are_in_order() -> None:
    """First what misses most, then the longest TTFT; what could not be read is last."""
    found = [
        summary("broken", 0, problem="it was cut", verdict="unknown"),
        summary("none", 0, of=0, ttft=9.0),
        summary("at once", 100, ttft=None),
        summary("all", 200, ttft=8.0),
        summary("b", 100),
        summary("a", 100, start=0.0),
        summary("slow", 100, ttft=2.0),
        summary("few", 1_500, of=3_000, ttft=1.5, num_unfinished=1_200),
    ]
    rows = rows_of("".join(folder.write(found, SLO)))
    assert [row[0] for row in rows] == ["slow", "few", "a", "b", "at once", "all", "none", "broken"]
    assert rows[1][4:7] == ["3,000", "1,200", "50.0%"]
    assert [row[2] for row in rows[2:4]] == ["1970-01-01 00:00:00 UTC", fmt.UNKNOWN]
    assert (rows[6][6], rows[6][3], rows[6][8]) == (fmt.UNKNOWN, fmt.UNKNOWN, "9.00 s")
    assert rows[7][-1] == "it was cut; unknown"
    assert len(rows_of("".join(folder.write(found, Slo())))[0]) == len(rows[0]) - 1


def test_a_summary_of_a_table(tmp_path: Path) -> None:
    """Of four requests, one was aborted, one goes on, and one has not all that it should."""
    second = 10**9
    rows: list[dict[str, Any]] = [
        {"engine_id": None, "finish_reason": None, "arrival_time_ns": 7 * second},
        {
            "engine_id": "one",
            "finish_reason": "stop",
            "arrival_time_ns": 5 * second,
            "last_token_time_ns": 9 * second,
            "ttft_ns": second // 2,
            "itl_ns": second // 4,
            "time_in_queue_ns": second // 10,
            "num_preemptions": 2,
            "waiting_ns_by_cause": [("no_blocks", 3 * second), ("seq_limit", None)],
        },
        {
            "engine_id": "two",
            "finish_reason": "length",
            "arrival_time_ns": 6 * second,
            "last_token_time_ns": 8 * second,
            "ttft_ns": second // 2 + 1,
            "time_in_queue_ns": second // 10,
            "num_preemptions": 1,
            "waiting_ns_by_cause": [("seq_limit", second), ("no_blocks", second // 2)],
        },
        {"engine_id": "one", "finish_reason": "abort", "ttft_ns": 3 * second},
    ]
    names = [*rows[1], "e2e_latency_ns"]
    schema = pa.schema([(name, columns("requests")[name]) for name in names])
    path = tmp_path / "run%201.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    assert tables.summarize(path, parse("ttft=0.5,queue=0.1,e2e=1")) == RecordingSummary(
        name="run 1",
        engine="one",
        start=5.0,
        figures=RunFigures(
            makespan=4.0,
            num_requests=2,
            num_preemptions=3,
            ttft=distribution([0.5, 0.500000001, 3.0]),
            itl=distribution([0.25]),
            num_within_slo=1,
        ),
        num_unfinished=1,
        verdict="requests waited 4.50 s, 78% of it: no free blocks",
    )
    pq.write_table(pa.Table.from_pylist(rows[:1], schema=schema), path)
    begun = tables.summarize(path, Slo())
    assert (begun.start, begun.figures.makespan, begun.num_unfinished) == (7.0, 0.0, 1)
    pq.write_table(pa.Table.from_pylist([], schema=schema), path)
    assert tables.summarize(path, Slo()) == RecordingSummary(name="run 1")
    path.write_bytes(b"no table")
    assert re.match(r"it cannot be read: \w", tables.summarize(path, Slo()).problem)
