"""`seqtop show`."""

import csv
import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias
from unittest.mock import Mock

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.history import FileWriter
from seqtop.state import EngineState
from seqtop.transport import local_engines
from seqtop.wire import codec
from seqtop.wire.messages import EngineInfo
from tests.support.commands import SEQTOP, run, run_here
from tests.support.random_engine import RandomEngine
from tests.support.recordings import append

Show: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


def test_show_json_is_the_state(engine: str) -> None:
    done = run(*SEQTOP, "show", engine, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["engine"]["engine"].startswith("engine_stub")
    assert document["connection"]["state"] == "live"
    assert document["requests"][0]["request_id"] == "typed-1"
    assert document["requests"][0]["sequences"][0]["num_prompt_tokens"] > 0


def test_the_engine_is_found_by_those_that_name_none(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(os.environ["XDG_RUNTIME_DIR"])  # the engine is older, and has that of all tests
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own.parent))
    assert engine in [found.endpoint for found in local_engines.find()]


def test_show_text_is_plain(engine: str) -> None:
    done = run(*SEQTOP, "show", engine, "--text")
    assert done.returncode == 0, done.stderr
    assert "typed-1" in done.stdout
    assert "\x1b" not in done.stdout


def test_show_into_a_closed_pipe_is_quiet(engine: str) -> None:
    done = run("sh", "-c", f"{' '.join(SEQTOP)} show {engine} --json | head -n 1")
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_a_closed_pipe_has_its_exit_status(engine: str) -> None:
    closed = run("bash", "-c", f"set -o pipefail; {' '.join(SEQTOP)} show {engine} --json | true")
    assert (closed.returncode, closed.stderr) == (141, "")


def test_every_without_follow_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "run.seqtop", "--every", "3"]) == 2
    assert capsys.readouterr().err == "seqtop: --every needs --follow\n"


@pytest.mark.parametrize(("given", "seconds"), [([], 1.0), (["--every", "0"], 0.0)])
def test_lines_follow_each_other_after_the_time_given(
    given: list[str], seconds: float, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = Mock()
    monkeypatch.setattr("seqtop.export.follow.follow", follow)
    assert main(["show", engine, "--follow", "--json", *given]) == 0
    assert follow.call_args.kwargs["every"] == seconds


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.setenv("COLUMNS", "120")
    return partial(run_here, capsys, "show")


def test_table_of_chosen_columns_rows_and_order(recording: str, show: Show) -> None:
    done = show(recording, "--columns", "id,out,e2e", "--filter", "status:length", "--sort", "out")
    heading, *rows = (row.split() for row in done.stdout.splitlines())
    assert heading == ["Id", "Out", "E2E"]
    outs = [int(row[1]) for row in rows]
    assert len(outs) > 2
    assert outs == sorted(outs, reverse=True), "largest first, as in the app"
    turned = show(recording, "--columns", "out", "--filter", "status:length", "--sort=-out")
    assert [int(row) for row in turned.stdout.split()[1:]] == sorted(outs)


def test_a_step_of_a_recording(recording: str, show: Show) -> None:
    done = show(recording, "--json", "--at", "10")
    assert json.loads(done.stdout)["step"] == 10


def test_groups_of_requests(recording: str, show: Show) -> None:
    done = show(recording, "--at", "10", "--by", "status")
    assert done.returncode == 0, done.stderr
    titles, *lines = (line.split() for line in done.stdout.splitlines())
    assert titles[:5] == ["status", "Requests", "Running", "Waiting", "Blocks"]
    document = json.loads(show(recording, "--at", "10", "--by", "status", "--json").stdout)
    groups = {group["name"]: group for group in document["groups"]}
    assert [line[0] for line in lines] == list(groups)
    rows = list(
        csv.DictReader(show(recording, "--at", "10", "--by", "status", "--csv").stdout.splitlines())
    )
    assert {row["status"]: int(row["num_blocks"]) for row in rows} == {
        name: group["num_blocks"] for name, group in groups.items()
    }
    state = json.loads(show(recording, "--at", "10", "--json").stdout)
    assert sum(group["num_requests"] for group in groups.values()) == len(state["requests"])
    only = show(recording, "--at", "10", "--by", "prefix", "--filter", "status:running", "--json")
    (group,) = json.loads(only.stdout)["groups"]
    assert group["name"] == "req"
    assert group["num_running"] == group["num_requests"] == groups["running"]["num_requests"]
    assert group["num_blocks"] == groups["running"]["num_blocks"]


def test_the_differences_between_two_steps(recording: str, show: Show) -> None:
    done = show(recording, "--at", "10", "--compare", "30")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "arrived in between; " in lines[0]
    begin = lines.index("") + 1
    assert lines[begin].startswith("A: step 10, ")
    assert lines[begin + 1].startswith("B: step 30, ")
    assert lines[-1].startswith("Blocks: ")
    document = json.loads(show(recording, "--at", "10", "--compare", "30", "--json").stdout)
    assert document["steps"] == [10, 30]
    assert {"came", "ended", "changed", "figures"} <= document.keys()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["RECORDING", "--compare", "3"], ("--compare needs --at",)),
        (
            ["RECORDING", "--at", "1", "--compare", "3", "--sort", "out"],
            ("--compare prints differences",),
        ),
        (["--columns", "request,nope,out"], ("no column 'nope'", "there are request, seq,")),
        (["--sort", "ot"], ("cannot sort by 'ot'", "perhaps out")),
        (["--filter", "promt>1"], ("no field 'promt'", "perhaps prompt")),
        (["--follow"], ("add --json",)),
        (["--follow", "--json", "RECORDING"], ("needs a running engine",)),
        (["--at", "3"], ("needs a recording",)),
        (["--json", "--sort", "out"], ("orders the table",)),
        (["--json", "--columns", "out"], ("jq",)),
        (["--by", "nope"], ("cannot group by 'nope'", "there are prefix,")),
        (["--csv"], ("--csv needs --by",)),
        (["--by", "prefix", "--sort", "out"], ("--sort are for sequences",)),
        (["--by", "prefix", "--json", "--follow"], ("without --follow",)),
        (["--every", "-1"], ("'-1' is not a number from 0 on",)),
    ],
)
def test_conflicts_of_options(
    recording: str,
    options: list[str],
    words: tuple[str, ...],
    show: Show,
) -> None:
    done = show(*(recording if option == "RECORDING" else option for option in options))
    assert (done.returncode, done.stdout) == (2, "")
    for word in words:
        assert word in done.stderr


def test_columns_that_the_engine_cannot_give_are_named_with_the_reason(
    tmp_path: Path, show: Show
) -> None:
    info, *events = RandomEngine(21, 20)
    assert isinstance(info, EngineInfo)
    info = msgspec.structs.replace(info, not_available={"why": "no queue", "end": "?"})
    path = tmp_path / "run.seqtop"
    with FileWriter(path) as writer:
        append(writer, [codec.encode(event) for event in (info, *events)], EngineState())
    done = show(str(path), "--columns", "out,why")
    assert done.stderr == "seqtop: not available: Why (no queue)\n"
    assert {row.split()[-1] for row in done.stdout.splitlines()[1:]} == {"n/a"}
    document = json.loads(show(str(path), "--json").stdout)
    assert document["engine"]["not_available"] == {"why": "no queue", "end": "?"}


@pytest.mark.parametrize("columns", ["99999999999", "-5", "x", "0"])
def test_no_width_takes_the_memory(
    recording: str,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:  # pytest reads it too, when it reports this test
        patch.setenv("COLUMNS", columns)
        assert main(["show", recording]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 10_000
