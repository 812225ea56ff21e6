"""Runs that are compared with a baseline: the bundled engine's, and figures at the limit."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from seqtop.checks.report import Report, check_recording
from seqtop.diff.same_requests import Figure
from seqtop.gates.baseline import Baseline
from seqtop.history import FileStore, FileWriter
from seqtop.state import EngineState
from tests.support.broken_recordings import NO_STEP, damage, record
from tests.support.diff_runs import payloads
from tests.support.recordings import append


def write(path: Path, run: Sequence[bytes]) -> Path:
    with FileWriter(path) as writer:
        writer.restore("one", -1, state := EngineState())
        append(writer, [*run], state)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of the bundled engine: twice the same run, and one with too few blocks."""
    folder = tmp_path_factory.mktemp("runs")
    for name, num_blocks in (("before", 40), ("same", 40), ("fewer", 14)):
        write(folder / f"{name}.seqtop", payloads(num_gpu_blocks=num_blocks))
    return folder


def compared(folder: Path, name: str, *, before: str = "before", tolerance: float = 0.1) -> Report:
    path = folder / f"{before}.seqtop"
    with FileStore(path) as recording:
        baseline = Baseline(path, recording, tolerance)
    report = check_recording(folder / f"{name}.seqtop")
    baseline.compare(report, folder / f"{name}.seqtop")
    return report


def test_the_same_run_passes(folder: Path) -> None:
    report = compared(folder, "same", tolerance=0.0)
    assert (report.findings, report.complete) == ([], True)
    assert {outcome.result for outcome in report.gates} == {"met"}
    assert [outcome.gate for outcome in report.gates] == [
        "throughput within 0%",
        "preemptions within 0%",
        "prefix-cache hit share within 0%",
        "served within 0%",
        "TTFT p50 within 0%",
        "TTFT p99 within 0%",
        "TPOT p50 within 0%",
        "TPOT p99 within 0%",
        "end to end p50 within 0%",
        "end to end p99 within 0%",
    ]


def test_a_planted_regression_fails_and_names_its_first_cause(folder: Path) -> None:
    report = compared(folder, "fewer")
    missed = {own.gate.removesuffix(" within 10%"): own for own in report.gates if own.step >= 0}
    assert missed.keys() >= {"throughput", "preemptions", "end to end p99"}
    assert "served" not in missed
    assert missed["preemptions"].message == "0 → 5"
    assert report.counts == {"regression": len(missed)} == {"regression": report.num_errors}
    assert "because num_gpu_blocks 40 → 14; first in step " in report.verdict
    assert f"compared with {folder / 'before.seqtop'}: " in report.as_text()
    better = compared(folder, "before", before="fewer")
    assert better.findings == []
    assert compared(folder, "fewer", tolerance=9.0).counts == {"regression": 1}


def figure(a: float | None, b: float | None, better: int, **least: bool) -> Figure:
    return Figure(name="x", unit="s", a=a, b=b, better=better, of_requests=True, **least)


@pytest.mark.parametrize(
    ("compared_figure", "result"),
    [
        (figure(1.0, 1.1, -1), "met"),
        (figure(1.0, 1.101, -1), "missed"),
        (figure(100.0, 90.0, 1), "met"),
        (figure(100.0, 89.9, 1), "missed"),
        (figure(100.0, 200.0, 1), "met"),
        (figure(0.0, 1.0, -1), "missed"),
        (figure(0.0, 0.0, -1), "met"),
        (figure(0.0, 0.0, 1), "met"),
        (figure(None, 1.0, -1), "unknown"),
        (figure(1.0, None, -1), "unknown"),
        (figure(1.0, 2.0, -1, b_is_least=True), "missed"),
        (figure(1.0, 1.0, -1, b_is_least=True), "unknown"),
        (figure(1.0, 2.0, -1, a_is_least=True), "unknown"),
        (figure(1.0, 1.0, -1, a_is_least=True), "met"),
        (figure(1.0, 2.0, -1, a_is_least=True, b_is_least=True), "unknown"),
    ],
)
def test_a_figure_is_judged_as_far_as_it_is_known(
    compared_figure: Figure, result: str, folder: Path
) -> None:
    path = folder / "before.seqtop"
    with FileStore(path) as recording:
        assert Baseline(path, recording, 0.1)._result(compared_figure) == result


def test_a_run_that_cannot_be_compared_does_not_pass(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.seqtop"
    record(other, NO_STEP)
    report = check_recording(folder / "same.seqtop")
    with FileStore(other) as recording:
        Baseline(other, recording, 0.1).compare(report, folder / "same.seqtop")
    assert (report.complete, report.gates) == (False, [])
    assert report.problem == f"not compared with {other}: no request is in both"

    broken = tmp_path / "broken.seqtop"
    broken.write_bytes((folder / "same.seqtop").read_bytes())
    damage(broken, "bad events")
    report = check_recording(broken)
    first = report.problem
    with FileStore(folder / "before.seqtop") as recording:
        Baseline("before", recording, 0.1).compare(report, broken)
    assert (report.complete, report.gates) == (False, [])
    assert report.problem is not None
    assert report.problem.startswith(f"{first}; not compared with before: ")
