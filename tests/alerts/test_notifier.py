"""Commands and web servers that are told of alerts."""

import json
import sys
import time
from pathlib import Path

import msgspec
import pytest

from seqtop.alerts import notifier
from seqtop.alerts.alert import Alert
from seqtop.alerts.notifier import MAX_WAITING, Notifier, TargetError
from tests.support.waiting import wait_until
from tests.support.web_server import serving

ALERT = Alert(
    cause="condition",
    state="began",
    message="waiting>5 holds since step 3",
    condition="waiting>5",
    engine_id="one\0two",
    endpoint="ipc:///e",
    incarnation="a",
    time=1.5,
    step=3,
    verdict="nothing limits it",
    recording="/records/flight.seqtop",
)
PROGRAM = """
import json, os, sys
with open({path!r}, "a") as file:
    print(json.dumps([json.load(sys.stdin), dict(os.environ)]), file=file)
"""


def command(program: str) -> str:
    return f"{sys.executable} -c '{program}'"


def test_a_command_and_a_web_server_receive_the_same(tmp_path: Path) -> None:
    path = tmp_path / "told"
    log: list[str] = []
    alert = msgspec.to_builtins(ALERT)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(path=str(path)))
    with serving() as server:
        with Notifier([f"{sys.executable} {program}"], [server.url], log.append) as told:
            told.send(ALERT)
            wait_until(lambda: told.num_told == 2 or told.num_failed > 0)
        assert log == []
        assert server.received == [("/alerts?token=1", alert)]
    (line,) = path.read_text().splitlines()
    received, environment = json.loads(line)
    assert received == alert
    assert environment["SEQTOP_ALERT_MESSAGE"] == "waiting>5 holds since step 3"
    assert environment["SEQTOP_ALERT_STATE"] == "began"
    assert environment["SEQTOP_ALERT_RECORDING"] == "/records/flight.seqtop"
    assert environment["SEQTOP_ALERT_ENGINE"] == "one two"


def test_one_that_hangs_is_ended_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "TIMEOUT", 1.0)
    log: list[str] = []
    with serving() as server, serving(answers=False) as deaf:
        hanging = command("import time; time.sleep(3600)")
        with Notifier([hanging], [server.url, deaf.url], log.append) as told:
            begun = time.monotonic()
            for _ in range(3):
                told.send(ALERT)
            wait_until(lambda: len(server.received) == 3)
            assert told.num_failed < 2, "the others are still at their first alert"
            wait_until(lambda: told.num_failed == 6)
            assert time.monotonic() - begun >= 3.0
    assert sorted(line.partition(" ")[0] for line in log) == ["--run", "--webhook"]
    assert any("it was ended after 1 s" in line for line in log)


def test_a_thousand_alerts_at_once_wait_or_are_counted() -> None:
    log: list[str] = []
    with serving(answers=False) as server:
        with Notifier([], [server.url], log.append) as told:
            for _ in range(1_000):
                told.send(ALERT)
            wait_until(lambda: len(server.received) == 1)
            # One more could be sent once the first had been taken from the queue.
            assert 1_000 - MAX_WAITING - 1 <= told.num_dropped <= 1_000 - MAX_WAITING
            server.may_answer.set()
            wait_until(lambda: told.num_told + told.num_dropped == 1_000)
        assert told.num_failed == 0


@pytest.mark.parametrize(
    ("commands", "problem"),
    [
        (["/nonexistent/program"], "FileNotFoundError"),
        ([command("raise SystemExit(3)")], "exit status 3"),
        ([command("import os; os.kill(os.getpid(), 9)")], "exit status -9"),
    ],
)
def test_a_failure_is_counted_and_said_once(commands: list[str], problem: str) -> None:
    log: list[str] = []
    with Notifier(commands, [], log.append) as told:
        for _ in range(3):
            told.send(ALERT)
        wait_until(lambda: told.num_failed == 3)
    (line,) = log
    assert problem in line


def test_a_web_server_that_refuses() -> None:
    log: list[str] = []
    with serving(status=503) as server, Notifier([], [server.url], log.append) as told:
        told.send(ALERT)
        wait_until(lambda: told.num_failed == 1)
    assert "HTTP Error 503" in log[0]


def test_alerts_that_wait_are_told_before_the_end(tmp_path: Path) -> None:
    with serving() as server:
        with Notifier([], [server.url], lambda _: None) as told:
            for _ in range(20):
                told.send(ALERT)
        assert len(server.received) == 20


@pytest.mark.parametrize(
    ("commands", "webhooks"),
    [
        (["'"], []),
        ([""], []),
        ([], ["file:///etc/passwd"]),
        ([], ["localhost:80"]),
        ([], ["http://"]),
    ],
)
def test_malformed_commands_and_addresses_are_refused(
    commands: list[str], webhooks: list[str]
) -> None:
    with pytest.raises(TargetError):
        Notifier(commands, webhooks, lambda _: None)
