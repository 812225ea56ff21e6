"""`seqtop check` as a gate: several recordings, and what CI reads of it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import seqtop
from seqtop.cli.main import main
from seqtop.wire.messages import Event
from tests.support.broken_recordings import BROKEN, NO_STEP, RIGHT, damage, record
from tests.support.commands import assert_one_sentence, run_here
from tests.support.events import arrival, engine_info, stats, step
from tests.support.waiting import SECONDS

ROOT = Path(__file__).parents[2]
PREEMPTED: tuple[Event, ...] = (
    engine_info(),
    arrival(1),
    step(0),
    *(step(number, stats=stats(num_preemptions=2)) for number in range(1, 4)),
)
ATTRIBUTES = {
    "testsuites": (set[str](), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package", "file"},
    ),
    "testcase": ({"name"}, {"time", "classname", "group"}),
    "failure": (set(), {"type", "message"}),
    "error": (set(), {"type", "message"}),
    "skipped": (set(), {"type", "message"}),
}
"""The attributes of elements that are needed, and those that may be there: those of the schema with
which pytest tests its own reports (testing/example_scripts/junit-10.xsd there), Jenkins's."""
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error", "skipped"},
}


def assert_junit(root: ET.Element) -> None:
    """Checks elements and attributes, and that the numbers are those of the cases."""
    for element in root.iter():
        needed, optional = ATTRIBUTES[element.tag]
        assert needed <= element.attrib.keys() <= needed | optional, element.tag
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    for suite in root.iter("testsuite"):
        counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
        for name, tag in counts.items():
            assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{tag}")), name
        names = [case.attrib["name"] for case in suite]
        assert len(names) == len({*names})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path / "a.seqtop", RIGHT)
    record(tmp_path / "b.seqtop", PREEMPTED)
    (tmp_path / "notes.txt").write_text("no recording")
    return tmp_path


GATES = ("--fail-if", "preemptions>1", "--fail-if", "swapped>0", "--slo", "ttft=1h,tpot=1s,p=90")


def test_all_recordings_of_a_folder_are_checked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "check", str(folder), "--fail-if", "preemptions>1", "--json")
    assert done.returncode == 1
    a, b = json.loads(done.stdout)
    assert (a["source"], b["source"]) == (str(folder / "a.seqtop"), str(folder / "b.seqtop"))
    assert (a["counts"], b["counts"]) == ({}, {"condition": 1})
    (finding,) = b["findings"]
    assert (finding["rule"], finding["step"], finding["severity"]) == ("condition", 1, "error")
    assert [own["result"] for own in (*a["gates"], *b["gates"])] == ["met", "missed"]

    files = str(folder / "a.seqtop"), str(folder / "b.seqtop")
    assert json.loads(run_here(capsys, "check", *files, "--json").stdout)[1]["findings"] == []
    single = run_here(capsys, "check", files[0], "--fail-if", "preemptions>1")
    assert single.returncode == 0
    assert single.stdout.startswith("condition preemptions>1: met: never held in 6 steps\n")


def test_one_of_several_that_cannot_be_read_does_not_pass(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "c.seqtop").write_text("no recording")
    done = run_here(capsys, "check", str(folder), "--junit")
    assert done.returncode == 3
    assert "c.seqtop" in done.stderr
    root = ET.fromstring(done.stdout)
    assert_junit(root)
    assert [suite.get("errors") for suite in root] == ["0", "0", "1"]
    assert run_here(capsys, "check", str(folder), "--fail-if", "preemptions>1").returncode == 1


def test_a_gate_that_nothing_is_known_of_does_not_pass(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "check", str(folder / "a.seqtop"), "--fail-if", "swapped>0")
    assert done.returncode == 3
    assert done.stderr == (
        "seqtop: condition swapped>0: unknown: the engine does not tell swapped\n"
    )
    assert done.stdout.startswith("condition swapped>0: unknown: ")


def test_gates_are_cases_of_junit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "check", str(folder / "b.seqtop"), *GATES, "--junit")
    assert done.returncode == 1
    suite = ET.fromstring(done.stdout)
    assert_junit(suite)
    results = {
        case.attrib["name"]: [child.tag for child in case]
        for case in suite
        if " " in case.attrib["name"]
    }
    assert results == {
        "condition preemptions>1": ["failure"],
        "condition swapped>0": ["skipped"],
        "objective TTFT p90 ≤ 1h 00m": [],
        "objective TPOT p90 ≤ 1.00 s": ["skipped"],
    }
    failure = suite.find("testcase[@name='condition preemptions>1']/failure")
    assert failure is not None
    assert failure.get("message", "").startswith("begins to hold here; it held after 3 of 4 steps")
    record(folder / "broken.seqtop", BROKEN)
    damage(folder / "broken.seqtop", "cut")
    for path in (folder / "broken.seqtop", folder):
        assert_junit(ET.fromstring(run_here(capsys, "check", str(path), "--junit").stdout))


def annotations(output: str) -> list[tuple[str, str, str]]:
    """Returns severity, title and message of GitHub's commands, unescaped as its runner does."""
    found = []
    for line in output.splitlines():
        match = re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line)
        assert match is not None, line
        title, message = match[2], match[3]
        for text, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ",")):
            title = title.replace(text, character)
        for text, character in (("%0D", "\r"), ("%0A", "\n")):
            message = message.replace(text, character)
        found.append((match[1], title.replace("%25", "%"), message.replace("%25", "%")))
    return found


def test_annotations_of_a_workflow(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nasty = arrival(1)
    nasty.request_id = "50%25,\n::error title=x::y\r"
    path = folder / "a,b:c%0A.seqtop"
    record(path, (engine_info(), nasty, nasty, step(0), step(1)))
    done = run_here(capsys, "check", str(path), "--fail-if", "kv<50%", "--github")
    assert done.returncode == 1
    condition, unknown, checked = annotations(done.stdout)
    assert condition[:2] == ("error", f"condition in {path}")
    assert condition[2].startswith("step 0: condition: kv<50%: begins to hold here; ")
    assert unknown[:2] == ("error", f"unknown in {path}")
    assert "request 50%25,↵::error title=x::y␍ arrived twice" in unknown[2]
    assert checked[:2] == ("notice", f"checked {path}")
    assert checked[2].splitlines()[-1] == f"{path}: 2 steps, 5 events, 0 gaps, 2 findings"
    record(folder / "none.seqtop", NO_STEP)
    done = run_here(capsys, "check", str(folder / "none.seqtop"), "--github")
    assert done.returncode == 3
    title = f"not all of {folder / 'none.seqtop'} could be checked"
    assert annotations(done.stdout)[0][:2] == ("error", title)


def test_no_more_annotations_than_github_shows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many: tuple[Event, ...] = (engine_info(), *(arrival(1) for _ in range(30)), step(0))
    record(folder / "many.seqtop", many)
    done = run_here(capsys, "check", str(folder / "many.seqtop"), "--fail-if", "kv>=0", "--github")
    found = annotations(done.stdout)
    assert [severity for severity, _, _ in found] == ["error"] * 10 + ["notice"]
    assert found[0][1].startswith("condition in ")
    assert "29 of unknown (error)" in found[-1][2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-if", "preemption>0"], "no field 'preemption': perhaps preempt"),
        (["--fail-if", "foo>1"], "tps, ttft, itl, "),
        (["--fail-if", ""], "a condition is needed"),
        (["--slo", "ttft=5x"], "no unit 'x'"),
        (["--slo", "p=99"], "an objective is needed"),
        (["--slo", "ttft=1,p=0"], "'p=0' is no percentile"),
        (["--slo", "ttft=1,p=101"], "'p=101' is no percentile"),
        (["--slo", "ttft=1,p<99"], "'p<99' is no percentile"),
        (["--tolerance", "10%"], "give one"),
        (["--baseline", "{a}", "--tolerance", "10"], "'10' is no share"),
        (["--baseline", "{a}", "--tolerance=-1%"], "'-1%' is no share"),
        (["--baseline", "/nonexistent"], "/nonexistent"),
        (["--duration", "0"], "'0' is no time above 0"),
        (["--duration", "nan"], "'nan' is no time above 0"),
        (["--duration", "3 weeks"], "'3 weeks' is no time above 0"),
        (["tcp://127.0.0.1:1"], "an engine is checked alone"),
        (["{folder}/typo.seqtop"], "there is no file "),
        (["{folder}/empty"], "there is no recording (*.seqtop) in"),
        (["{a}", "--protocol"], "--protocol checks a publisher at an endpoint"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    a = str(folder / "a.seqtop")
    given = [own.format(a=a, folder=folder) for own in arguments]
    done = run_here(capsys, "check", a, *given)
    assert_one_sentence(done, 2, words)


def test_the_script_of_the_workflow(tmp_path: Path) -> None:
    """It passes on the recorded demo, and finds a planted regression."""
    assert "tests/gates/demo.sh" in (ROOT / ".github" / "workflows" / "test.yml").read_text()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    demo = Path(seqtop.__file__).parent / "demo.seqtop"
    done = subprocess.run(
        [ROOT / "tests" / "gates" / "demo.sh", demo, tmp_path],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"PATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    passed, failed = done.stdout.split("same.seqtop: 401 steps")
    assert "regression preemptions within 5.0%: met: 3 → 3 (+0.0%)" in passed
    assert "regression: preemptions within 5.0%: 3 → 12 (+300.0%)" in failed
    assert "because num_gpu_blocks 64 → 51; first in step 44, preemption: " in failed
    worse = tmp_path / "fewer-blocks.seqtop"
    assert main(["check", str(worse)]) == 0, "the rules alone find nothing"
