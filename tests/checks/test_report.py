"""The report of `seqtop check`: what a broken stream leads to, in each of its forms."""

import json
import threading
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from seqtop.checks.gate import Outcome
from seqtop.checks.live_report import check_live
from seqtop.checks.message_rules import PROTOCOL_RULES
from seqtop.checks.report import Report, check_recording
from seqtop.checks.rules import RULES
from seqtop.cli.main import main
from seqtop.wire.messages import EngineStopped
from tests.support.broken_recordings import BROKEN, NO_STEP, damage, record
from tests.support.events import arrival, engine_info, step
from tests.support.hand_driven import HandDrivenEngine
from tests.support.waiting import SECONDS, wait_until


def test_recording_with_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    record(path, BROKEN)
    report = check_recording(path)
    assert [finding.rule for finding in report.findings] == ["unknown"]
    assert (report.num_events, report.num_steps, report.num_gaps) == (5, 2, 0)
    assert "request req-1 arrived twice" in report.as_text()
    total, summary = report.as_text().splitlines()[-2:]
    assert total.startswith("1 of unknown (error): an event names an object that was not announced")
    assert summary == f"{path}: 2 steps, 5 events, 0 gaps, 1 findings"
    assert json.loads(report.as_json())["counts"] == {"unknown": 1}
    suite = ET.fromstring(report.as_junit())
    assert suite.get("failures") == "1"
    assert (suite.get("errors"), suite.get("tests")) == ("0", str(len(suite)))
    assert {case.get("name") for case in suite} == RULES.keys() - PROTOCOL_RULES | {"complete"}
    (failed,) = suite.findall("testcase[failure]")
    assert failed.get("name") == "unknown"


def test_live_engine_until_it_stops(endpoint: str) -> None:
    reports: list[Report] = []

    def check() -> None:
        reports.append(
            check_live(endpoint, ended=threading.Event(), duration=None, timeout=SECONDS)
        )

    with HandDrivenEngine(endpoint) as engine:
        checking = threading.Thread(target=check)
        checking.start()
        engine.await_viewer()
        engine.answer()
        for event in (*BROKEN, EngineStopped(time=500.0)):
            engine.send(event)
        wait_until(lambda: not checking.is_alive())
    (report,) = reports
    assert report.counts == {"unknown": 1}
    assert report.num_steps == 2
    assert (report.complete, report.problem) == (True, None)


def test_sentences_cannot_move_the_cursor(tmp_path: Path) -> None:
    nasty = arrival(1)
    nasty.request_id = "a\x1b[2J\n"
    path = tmp_path / "run.seqtop"
    record(path, (engine_info(), nasty, nasty))
    text = check_recording(path).as_text()
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("empty", "is empty"),
        ("header cut", "can be read: it was cut short or is damaged"),
        ("cut at once", "its last 4 bytes are lost"),
        ("cut", "was cut short or is damaged: its last"),
        ("bad events", "is damaged at byte"),
        ("bad keyframe", "is damaged at byte"),
    ],
)
def test_an_unchecked_part_does_not_pass(
    pieces: Path, how: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(pieces)]) == 0
    assert capsys.readouterr().err == ""
    damage(pieces, how)
    assert main(["check", str(pieces)]) == 3
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("seqtop: ")
    assert sentence in line
    assert said.out.endswith("0 findings; not all could be checked\n")

    assert main(["check", str(pieces), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["complete"], report["problem"]) == (False, line.removeprefix("seqtop: "))

    assert main(["check", str(pieces), "--junit"]) == 3
    suite = ET.fromstring(capsys.readouterr().out)
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    (case,) = suite.findall("testcase[error]")
    assert case.get("name") == "complete"
    assert case[0].get("message") == report["problem"]


def test_messages_beyond_damage_are_checked(pieces: Path) -> None:
    whole = check_recording(pieces).num_steps
    damage(pieces, "bad events")
    report = check_recording(pieces)
    assert 0 < report.num_steps < whole
    assert report.num_gaps == 1
    damage(pieces, "cut")
    assert check_recording(pieces).num_steps < report.num_steps


def test_a_recording_without_a_step_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.seqtop"
    record(path, NO_STEP)
    assert main(["check", str(path)]) == 3
    assert (
        capsys.readouterr().err == f"seqtop: {path} has no step in it: there is nothing to check\n"
    )


def test_findings_matter_more_than_what_is_lost(
    pieces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces.unlink()
    record(pieces, (engine_info(), arrival(1), arrival(1), *(step(number) for number in range(6))))
    damage(pieces, "cut")
    assert main(["check", str(pieces)]) == 1
    assert capsys.readouterr().out.endswith("1 findings; not all could be checked\n")


def test_a_recording_that_was_not_closed_passes_with_a_word(
    pieces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pieces.open("r+b") as file:
        file.truncate(pieces.stat().st_size - 30)
    assert main(["check", str(pieces)]) == 0
    assert "was not closed: its index was rebuilt, nothing is lost" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "show --json", "export --csv", "replay"])
def test_a_file_in_which_nothing_can_be_read_is_refused(
    command: str, pieces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(pieces, "cut at once")
    assert main([*command.split(), str(pieces)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"seqtop: nothing in {pieces} can be read: it was cut short")


def test_gates_are_lines_and_findings_of_the_report() -> None:
    report = Report("run", num_errors=1, num_warnings=2)
    report.add_outcomes(
        [
            Outcome(rule="condition", gate="kv>95%", result="missed", message="it was 97%", step=0),
            Outcome(rule="condition", gate="swapped>0", result="missed", message="it was 3"),
            Outcome(rule="objective", gate="TTFT p99", result="met", message="it is 5 ms"),
            Outcome(rule="regression", gate="steps", result="unknown", message="there is none"),
        ]
    )
    assert report.complete, "a baseline need not have each figure"
    assert report.as_text().splitlines() == [
        "step 0: condition: kv>95%: it was 97%",
        "the whole run: condition: swapped>0: it was 3",
        "objective TTFT p99: met: it is 5 ms",
        "regression steps: unknown: there is none",
        "2 of condition (error): a condition held that must not",
        "run: 0 steps, 0 events, 0 gaps, 5 findings, 2 of them warnings",
    ]
    unknown = Outcome(rule="objective", gate="ITL", result="unknown", message="no token came")
    report.add_outcomes([unknown])
    assert (report.complete, report.problem) == (False, "objective ITL: unknown: no token came")
