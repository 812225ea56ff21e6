"""`seqtop show --follow --json` against an engine driven by hand, and `show`'s table options."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from seqtop.cli.main import main
from seqtop.sequence import SequenceStatus
from seqtop.wire.messages import EngineStopped, Heartbeat, SequenceUpdate
from tests.support.hand_driven import HandDrivenEngine, arrival, engine_info, stats, step
from tests.support.waiting import SECONDS

SEQTOP = (sys.executable, "-m", "seqtop")


def running(seq_id: int, num_computed_tokens: int = 3) -> SequenceUpdate:
    return SequenceUpdate(
        seq_id=seq_id, status=SequenceStatus.RUNNING, num_computed_tokens=num_computed_tokens
    )


@contextmanager
def following(
    engine: HandDrivenEngine, endpoint: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The command, connected and with a snapshot on its way."""
    process = subprocess.Popen(
        [*SEQTOP, "show", endpoint, "--follow", "--json", "--every", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            engine.await_viewer()
            engine.answer()
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text.endswith(b"\n")
    assert b": " not in text, "it is to be compact"
    return json.loads(text)


@pytest.fixture
def engine(endpoint: str) -> Iterator[HandDrivenEngine]:
    with HandDrivenEngine(endpoint) as engine:
        engine.send(engine_info(heartbeat_interval=1000.0))
        engine.send(arrival(1))
        engine.send(arrival(2))
        yield engine


def test_each_step_is_a_line_of_what_changed(engine: HandDrivenEngine, endpoint: str) -> None:
    with following(engine, endpoint) as process:
        first = line(process)
        assert (first["version"], first["kind"], first["step"]) == (1, "state", -1)
        assert first["engine"]["engine_id"] == "test"
        assert first["stats"] is None
        assert [each["seq"] for each in first["sequences"]] == [1, 2]
        assert first["sequences"][0]["status"] == "waiting"
        assert "text" not in first["sequences"][0]
        engine.send(step(0, sequences=[running(2)], stats=stats(num_running=1)))
        second = line(process)
        assert (second["kind"], second["step"], second["link"]) == ("change", 0, "live")
        assert second["stats"]["num_running"] == 1
        (changed,) = second["sequences"]
        assert (changed["seq"], changed["status"], changed["computed"]) == (2, "running", 3)
        assert second["gone"] == []
        engine.send(Heartbeat(time=200.0, step=0))  # nothing to say
        engine.send(step(1))
        assert line(process)["step"] == 1
        engine.send(EngineStopped(time=300.0, reason="maintenance"))
        end = line(process)
        while end["kind"] == "change":
            end = line(process)
        assert (end["kind"], end["reason"], end["time"]) == ("end", "maintenance", 300.0)
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_filter_lets_sequences_come_and_go(engine: HandDrivenEngine, endpoint: str) -> None:
    options = ("--filter", "status:running", "--columns", "request,text")
    with following(engine, endpoint, *options) as process:
        assert line(process)["sequences"] == []
        engine.send(step(0, sequences=[running(2)]))
        assert line(process)["sequences"] == [{"seq": 2, "request": "req-2", "text": ""}]
        waiting = SequenceUpdate(
            seq_id=2, status=SequenceStatus.WAITING, num_computed_tokens=0, text_delta="x"
        )
        engine.send(step(1, sequences=[waiting]))
        third = line(process)
        assert (third["sequences"], third["gone"]) == ([], [2])


def test_after_a_gap_comes_a_whole_state(engine: HandDrivenEngine, endpoint: str) -> None:
    with following(engine, endpoint) as process:
        line(process)
        engine.send(arrival(3), lose=True)
        engine.send(arrival(4))
        engine.answer()
        found = line(process)
        while found["kind"] == "change":
            found = line(process)
        assert [each["seq"] for each in found["sequences"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(
    engine: HandDrivenEngine, endpoint: str, number: signal.Signals
) -> None:
    with following(engine, endpoint) as process:
        line(process)
        process.send_signal(number)
        end = line(process)
        assert (end["kind"], end["reason"]) == ("end", "interrupted")
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_reader_that_goes_ends_it_though_the_engine_is_idle(
    engine: HandDrivenEngine, endpoint: str
) -> None:
    with following(engine, endpoint) as process:
        line(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(SECONDS) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def show(*options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "120"}
    command = [*SEQTOP, "show", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)


def test_table_of_chosen_columns_rows_and_order(recording: str) -> None:
    done = show(recording, "--columns", "id,out,e2e", "--filter", "status:length", "--sort", "out")
    heading, *rows = (row.split() for row in done.stdout.splitlines())
    assert heading == ["Id", "Out", "E2E"]
    outs = [int(row[1]) for row in rows]
    assert len(outs) > 2
    assert outs == sorted(outs, reverse=True), "largest first, as in the app"
    turned = show(recording, "--columns", "out", "--filter", "status:length", "--sort=-out")
    assert [int(row) for row in turned.stdout.split()[1:]] == sorted(outs)


def test_a_step_of_a_recording(recording: str) -> None:
    done = show(recording, "--json", "--at", "10")
    assert json.loads(done.stdout)["step"] == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--columns", "request,nope,out"], ("no column 'nope'", "there are request, seq,")),
        (["--sort", "ot"], ("cannot sort by 'ot'", "perhaps out")),
        (["--filter", "promt>1"], ("no field 'promt'", "perhaps prompt")),
        (["--follow"], ("add --json",)),
        (["--follow", "--json", "RECORDING"], ("needs a running engine",)),
        (["--at", "3"], ("needs a recording",)),
        (["--json", "--sort", "out"], ("orders the table",)),
        (["--json", "--columns", "out"], ("jq",)),
        (["--every", "-1"], ("'-1' is not a number from 0 on",)),
    ],
)
def test_mistakes_in_options(
    recording: str,
    options: list[str],
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        status = main(["show", *(recording if each == "RECORDING" else each for each in options)])
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2
    said = capsys.readouterr()
    assert said.out == ""
    for word in words:
        assert word in said.err
