"""JSON lines of `seqtop show --follow`, from an engine driven by hand."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.wire.messages import EngineStopped, Heartbeat, SequenceUpdate
from tests.support.events import arrival, engine_info, stats, step, update
from tests.support.forked import start
from tests.support.hand_driven import HandDrivenEngine
from tests.support.waiting import SECONDS

SEQTOP = (sys.executable, "-m", "seqtop")


def running(seq_id: int, num_computed_tokens: int = 3) -> SequenceUpdate:
    return update(seq_id, SequenceStatus.RUNNING, num_computed_tokens)


@contextmanager
def following(
    engine: HandDrivenEngine, endpoint: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The command, connected and with a snapshot on its way."""
    process = start(
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
        assert [sequence["seq"] for sequence in first["sequences"]] == [1, 2]
        assert first["sequences"][0]["status"] == "waiting"
        assert "text" not in first["sequences"][0]
        engine.send(step(0, sequences=[running(2)], stats=stats(num_running=1)))
        second = line(process)
        assert (second["kind"], second["step"], second["connection"]) == ("change", 0, "live")
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
        waiting = update(2, SequenceStatus.WAITING, 0, text="x")
        engine.send(step(1, sequences=[waiting]))
        third = line(process)
        assert (third["sequences"], third["gone"]) == ([], [2])


def test_a_filter_on_time_lets_sequences_come_while_nothing_else_changes(
    engine: HandDrivenEngine, endpoint: str
) -> None:
    options = ("--filter", "queue>150s", "--columns", "queue")
    with following(engine, endpoint, *options) as process:
        assert line(process)["sequences"] == []
        engine.send(Heartbeat(time=151.5, step=-1))
        assert line(process)["sequences"] == [{"seq": 1, "queue": 150.5}]
        for time in (151.6, 153.0):  # of the first there is nothing to say
            engine.send(Heartbeat(time=time, step=-1))
        assert [sequence["seq"] for sequence in line(process)["sequences"]] == [1, 2]
        engine.send(step(0, time=200.0, sequences=[running(1)]))
        changed = line(process)
        assert (changed["sequences"], changed["gone"]) == ([{"seq": 2, "queue": 198.0}], [1])


def test_an_engine_of_another_version_ends_it_with_an_error(
    engine: HandDrivenEngine, endpoint: str
) -> None:
    with following(engine, endpoint) as process:
        line(process)
        engine.send(arrival(3), lose=True)
        engine.send(arrival(4))
        engine.send_frames([b"seqtop/4/two", bytes(8), b""])
        assert process.wait(SECONDS) == 1
        assert process.stderr is not None
        assert b"uses version 4 of the seqtop protocol" in process.stderr.read()


def test_after_a_gap_comes_a_whole_state(engine: HandDrivenEngine, endpoint: str) -> None:
    with following(engine, endpoint) as process:
        line(process)
        engine.send(arrival(3), lose=True)
        engine.send(arrival(4))
        engine.answer()
        written = line(process)
        while written["kind"] == "change":
            written = line(process)
        assert [sequence["seq"] for sequence in written["sequences"]] == [1, 2, 3, 4]


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
