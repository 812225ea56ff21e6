"""CSV of a real run, read back; nothing in it does anything in a spreadsheet."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from seqtop.export import csv_rows
from seqtop.export.lifecycle import EngineRun, read_runs
from seqtop.history import FileStore
from seqtop.state.fields import FIELDS


@pytest.fixture(scope="module")
def runs(recorded: Path) -> list[EngineRun]:
    with FileStore(recorded) as recording:
        return read_runs(recording)


def read(
    write: Callable[[list[EngineRun], TextIO], None], runs: list[EngineRun]
) -> list[dict[str, str]]:
    file = io.StringIO()
    write(runs, file)
    file.seek(0)
    return list(csv.DictReader(file, strict=True))


def number(text: str) -> float | None:
    return float(text) if text else None


def test_a_row_a_sequence_with_every_column_and_the_raw_metrics(runs: list[EngineRun]) -> None:
    rows = read(csv_rows.write_sequences, runs)
    lives = list(runs[0].requests.values())
    assert len(rows) == len(lives) == 7
    for row, life in zip(rows, lives, strict=True):
        request, metrics, (sequence,) = life.request, life.request.metrics, life.sequences
        assert row.keys() >= FIELDS.keys()
        assert None not in row.values()
        for key, column in FIELDS.items():
            value = column.value(request, sequence, life.until)
            if not isinstance(value, str):
                assert number(row[key]) == value, key
        assert row["incarnation"] == runs[0].incarnation
        assert row["finish_reason"] == (request.finish_reason or "")
        assert number(row["arrival_time"]) == metrics.arrival_time
        assert number(row["finished_time"]) == metrics.finished_time
        assert number(row["time_in_queue"]) == metrics.time_in_queue
        assert number(row["cumulative_logprob"]) == sequence.cumulative_logprob
    assert rows[0]["text"].startswith(lives[0].sequences[0].text[:5].strip())


def test_a_row_a_step(runs: list[EngineRun]) -> None:
    rows = read(csv_rows.write_steps, runs)
    assert [int(row["step"]) for row in rows] == [step.step for step in runs[0].steps]
    for row, step in zip(rows, runs[0].steps, strict=True):
        assert float(row["start_time"]) == step.start_time
        assert int(row["num_used_blocks"]) == step.stats.num_used_blocks
        assert int(row["num_preempted"]) == step.num_preempted
        assert row["num_swapped"] == ""  # this engine has no such thing


def test_text_is_no_formula_and_has_no_controls(runs: list[EngineRun]) -> None:
    file = io.StringIO()
    csv_rows.write_sequences(runs, file)
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f]", file.getvalue()) is None
    (evil,) = (row for row in read(csv_rows.write_sequences, runs) if "cmd" in row["id"])
    assert evil["id"] == "'-2+3+cmd|' /C calc'!A0"
    assert evil["prompt_text"].startswith("'=HYPERLINK(")
    for row in read(csv_rows.write_sequences, runs):
        for value in row.values():
            if re.match(r"\s*[=+\-@]", value):
                float(value)  # or it fails: only numbers may begin so


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("plain", "plain"),
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'    =1"),
        ("\r=1", "␍=1"),
        ("  =1", "'  =1"),
        ("＝1", "'＝1"),  # noqa: RUF001
        ("'=1", "'=1"),
        ('a,"b"', 'a,"b"'),
        ("a\nb", "a↵b"),
        (-1.5, -1.5),
        (7, 7),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_cells(value: float | str | None, cell: float | str | None) -> None:
    assert csv_rows.cell(value) == cell
