"""CSV of a real run, read back; nothing in it does anything in a spreadsheet or a terminal."""

import csv
import io
import math
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqtop.export import csv_rows
from seqtop.export.lifecycle import read_runs
from seqtop.history import FileStore

_FORMULAS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001


def exact(cell: str) -> str:
    """The exact text of a cell, as docs/export.md shows it."""
    return re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), cell.removeprefix("'"))


def test_the_document_has_the_way_back() -> None:
    text = Path("docs/export.md").read_text(encoding="utf-8")
    (example_line,) = re.findall(r"^re\.sub.*$", text, re.MULTILINE)
    for cell in ("'=1", r"a\u001bb", r"\u005cu001b", "''x"):
        assert eval(example_line, {"re": re, "cell": cell}) == exact(cell)


@given(st.text(st.characters(), max_size=20) | st.text("'=+-@＝\\u001b\r\n\t \x1b\u202e\ud800"))  # noqa: RUF001
@example(r"\u001b")
@example("'=1")
@example("\r\n=1\x00")
def test_text_is_whole_and_interpreted_by_nobody(text: str) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerow([csv_rows.cell(text), "end"])
    written = file.getvalue()
    written.encode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", written)
    ((cell, end),) = csv.reader(io.StringIO(written, newline=""), strict=True)
    assert (exact(cell), end) == (text, "end")
    assert not cell.lstrip().startswith(_FORMULAS)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("plain", "plain"),
        ("=1+1", "'=1+1"),
        ("  @SUM(A1)", "'  @SUM(A1)"),
        ("a\nb", "a\nb"),
        ("\x1b]52", r"\u001b]52"),
        (-1.5, -1.5),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_cells(value: float | str | None, cell: float | str | None) -> None:
    assert csv_rows.cell(value) == cell


def test_times_are_from_the_start_and_texts_whole(recorded: Path) -> None:
    with FileStore(recorded) as recording:
        (run,) = runs = read_runs(recording)
    files = []
    for write in (csv_rows.write_sequences, csv_rows.write_steps):
        file = io.StringIO(newline="")
        write(runs, file)
        files.append(list(csv.DictReader(io.StringIO(file.getvalue(), newline=""), strict=True)))
    sequences, steps = files
    (start,) = {float(row["start_epoch"]) for row in (*sequences, *steps)}
    lifecycles = list(run.requests.values())
    assert start == min(it.request.metrics.arrival_time for it in lifecycles)
    for row, lifecycle in zip(sequences, lifecycles, strict=True):
        request, metrics, (sequence,) = (
            lifecycle.request,
            lifecycle.request.metrics,
            lifecycle.sequences,
        )
        assert exact(row["request_id"]) == request.request_id
        assert (exact(row["prompt"]), exact(row["text"])) == (request.prompt, sequence.text)
        for name in ("arrival_time", "first_token_time", "finished_time"):
            time = getattr(metrics, name)
            if time is None:
                assert row[name] == ""
            else:
                assert math.isclose(float(row[name]), time - start, abs_tol=1e-9)
    for row, step in zip(steps, run.steps, strict=True):
        assert math.isclose(float(row["end_time"]), step.time - start, abs_tol=1e-9)
        assert row["limited_by"] == (step.limited_by or "nothing_waits")
    assert {"no_blocks", "nothing_waits"} <= {row["limited_by"] for row in steps}
