"""The results of recordings as tests, word for word."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seqtop.diff.comparison import Difference, DifferenceKind
from seqtop.whatif import recorded_tests_report as report
from seqtop.whatif.proof import Proof
from seqtop.whatif.recorded_tests import (
    Coverage,
    RecordedTest,
    RecordedTests,
    SchedulerOptions,
    run_tests,
)
from seqtop.whatif.settings import SettingError
from tests.support.broken_recordings import NO_STEP, record

EQUAL = Proof(1_000, 1_000, None, "", starts_late=False)


def different(kind: DifferenceKind, step_a: int = 1_234, by: str = "") -> Proof:
    difference = Difference(kind, "one", "other", step_a, -1, "of a limit")
    return Proof(1_001, 999, difference, by, starts_late=False)


def a_test(outcome: Any, proof: Proof | None = None, **fields: Any) -> RecordedTest:
    return RecordedTest(path="a.seqtop", outcome=outcome, proof=proof, **fields)


DIFFERS = [
    "  the first difference is in admission:",
    "  recorded, step 1,234: one",
    "  repeated, no step: other",
    "  because of a limit",
]


@pytest.mark.parametrize(
    ("test", "details"),
    [
        (a_test("equal", EQUAL), []),
        (a_test("equal", EQUAL, refused={"x": "too long"}), []),
        (a_test("different", different("admission")), DIFFERS),
        (
            a_test("different", different("admission", by="engine 2")),
            ["  repeated by engine 2", *DIFFERS],
        ),
        (
            a_test("different", different("length")),
            ["  the first difference is in length:", *DIFFERS[1:]],
        ),
        (
            a_test("failed", different("length"), problem="it broke"),
            ["  step 1,234: it broke"],
        ),
        (a_test("failed", EQUAL, problem="it broke"), ["  it broke"]),
        (a_test("failed", None, problem="it broke"), ["  it broke"]),
        (
            a_test("failed", different("admission"), problem="it broke"),
            [*DIFFERS, "  it broke"],
        ),
        (a_test("unreadable", None, problem="it is cut"), ["  it is cut"]),
        (
            a_test("not replayed", different("length"), problem="?"),
            ["  the first difference is in length:", *DIFFERS[1:], "  ?"],
        ),
        *(
            (
                a_test("different", EQUAL, refused={str(n): "too long" for n in range(count)}),
                [f"  the scheduler refused {n}: too long" for n in range(min(count, 4))]
                + [f"  the scheduler refused {more}" for more in more if more],
            )
            for count, more in ((4, [""]), (5, ["1 more request"]), (7, ["3 more requests"]))
        ),
    ],
)
def test_the_details_of_a_recording(test: RecordedTest, details: list[str]) -> None:
    lines = report.as_text(RecordedTests(recordings=[test], decisions=[])).splitlines()
    assert lines[2:-2] == (["", "a.seqtop:", *details] if details else [])


ALL = RecordedTests(
    recordings=[
        RecordedTest(path="a.seqtop", num_requests=1_000, proof=EQUAL),
        RecordedTest(path="b", outcome="different", num_requests=7, proof=different("admission")),
        RecordedTest(path="c", outcome="failed", problem="it broke"),
        RecordedTest(path="d", outcome="not replayed", problem="it has no tokens"),
        RecordedTest(path="e", outcome="unreadable", problem="it is cut"),
    ],
    decisions=[
        Coverage(name="x", title="admitted", meaning="requests", count=1_000, num_recordings=2),
        Coverage(name="y", title="swapped", meaning="requests"),
        Coverage(name="z", title="paused", meaning="steps"),
    ],
)


def test_the_table_and_the_summary() -> None:
    lines = report.as_text(ALL).splitlines()
    assert lines[:6] == [
        "recording  outcome          steps equal  requests",
        "a.seqtop   equal         1,000 of 1,000     1,000",
        "b          different       999 of 1,001         7",
        "c          failed",
        "d          not replayed",
        "e          unreadable",
    ]
    assert lines[-7:] == [
        "",
        "decision  times  recordings",
        "admitted  1,000           2  requests",
        "",
        "not in the recordings: swapped, paused",
        "",
        "1 of 5 recordings equal, 1 different, 1 failed, 1 not replayed, 1 unreadable",
    ]
    one = RecordedTests(recordings=ALL.recordings[:1], decisions=ALL.decisions[:1])
    assert report.as_text(one).splitlines()[-3:] == [
        "the recordings have all kinds of decisions",
        "",
        "1 of 1 recording equal",
    ]


def test_the_results_as_json() -> None:
    for tests, is_equal in (
        (ALL, False),
        (RecordedTests(recordings=ALL.recordings[:1], decisions=[]), True),
    ):
        document = json.loads(report.as_json(tests))
        assert document.pop("is_equal") is is_equal
        assert document == json.loads(msgspec.json.encode(tests))


def test_the_results_as_test_cases() -> None:
    cases = [report._case(test) for test in ALL.recordings]
    assert [(case.classname, case.name) for case in cases] == [
        ("recording", test.path) for test in ALL.recordings
    ]
    assert [(case.failure_type, case.failure, case.error) for case in cases] == [
        ("", None, None),
        ("different", "999 of 1,001 steps equal", None),
        ("failed", "it broke", None),
        ("", None, "not replayed: it has no tokens"),
        ("", None, "unreadable: it is cut"),
    ]
    assert [case.details for case in cases] == [
        *("", "\n".join(line.strip() for line in DIFFERS)),
        *("it broke", "", ""),
    ]


def test_recordings_that_no_scheduler_is_given_are_named_with_the_reasons(tmp_path: Path) -> None:
    other, late = tmp_path / "other.seqtop", tmp_path / "late.seqtop"
    record(other, NO_STEP)
    record(late, NO_STEP[1:])
    missing = tmp_path / "missing.seqtop"
    paths = [str(path) for path in (other, late, missing)]
    tests = run_tests(paths, SchedulerOptions()).recordings
    assert [own.outcome for own in tests] == ["not replayed", "not replayed", "unreadable"]
    assert tests[0].problem == "the scheduler of test 1 cannot be run again yet"
    assert tests[1].problem == "the recording does not describe its engine"
    with pytest.raises(SettingError, match="no recording ran with the policy mine"):
        run_tests(paths, SchedulerOptions(policy="mine.py"))
