"""Errors, usage and help of the whole command line."""

import os
import subprocess

import pytest
import zmq

from seqtop.cli import COMMANDS
from seqtop.cli.main import main
from tests.support.commands import SEQTOP, assert_one_sentence, run
from tests.support.waiting import MILLISECONDS, SECONDS


def test_unreachable_endpoint() -> None:
    done = run(*SEQTOP, "show", "tcp://127.0.0.1:1", "--timeout", "0.3")
    assert_one_sentence(done, 1, "no engine answered at tcp://127.0.0.1:1", "is one running")


@pytest.mark.parametrize("command", ["show", "attach", "check"])
def test_malformed_endpoint(command: str) -> None:
    done = run(*SEQTOP, command, "http://localhost:80")
    assert_one_sentence(done, 2, "'http://localhost:80'", "tcp://HOST:PORT")


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([os.urandom(64)], ("does not send a seqtop stream",)),
        ([b"kv@events", bytes(8), b"\x93\x01\x02\x03"], ("does not send a seqtop stream",)),
        ([b"seqtop/3/x", bytes(8), b""], ("uses version 3", "this viewer version")),
    ],
)
def test_foreign_publisher(endpoint: str, frames: list[bytes], words: tuple[str, ...]) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind(endpoint)
        viewer = subprocess.Popen(
            [*SEQTOP, "show", endpoint, "--timeout", "30"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert publisher.poll(MILLISECONDS)
        publisher.recv()
        publisher.send_multipart(frames)
        stdout, stderr = viewer.communicate(timeout=SECONDS)
        done = subprocess.CompletedProcess([], viewer.returncode, stdout, stderr)
        assert_one_sentence(done, 1, *words)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_has_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    assert exit_.value.code == 0
    assert "example" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "command", "words"),
    [
        (["show", "--jsn"], "seqtop show", ("'--jsn', perhaps --json",)),
        (["show", "--bogus"], "seqtop show", ("unrecognised argument '--bogus';",)),
        (["record", "-o", "x", "--durations=3"], "seqtop record", ("perhaps --duration",)),
        (["check", "a", "b"], "seqtop check", ("unrecognised argument 'b'",)),
        (["--verison", "show"], "seqtop", ("perhaps --version",)),
        (["replay"], "seqtop replay", ("FILE",)),
        ([], "seqtop", ("COMMAND",)),
        (["serve", "replay", "x", "--loop"], "seqtop serve", ("'--loop': options", "go after --")),
        (
            ["show", "--timeout", "-1"],
            "seqtop show",
            ("--timeout: '-1' is not a number from 0 on",),
        ),
        (["check", "--timeout", "nan"], "seqtop check", ("'nan' is not a number from 0 on",)),
        (["demo", "--pace", "-3"], "seqtop demo", ("--pace: '-3' is not a number from 0 on",)),
        (["show", "--filter", "foo>3"], "seqtop show", ("no field 'foo': there are request, seq",)),
        (["attach", "--filter", "foo>3"], "seqtop attach", ("no field 'foo': there are request",)),
        (["show", "--filter", "promt>3"], "seqtop show", ("no field 'promt': perhaps prompt;",)),
    ],
)
def test_wrong_usage_is_one_sentence_of_the_command_meant(
    arguments: list[str], command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{command}: ")
    assert said.endswith(f"; see {command} --help")
    for word in words:
        assert word in said


def test_a_mistyped_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atach", "tcp://127.0.0.1:5557"]) == 2
    said = capsys.readouterr().err
    assert said == "seqtop: no command 'atach', perhaps attach; seqtop --help lists them all\n"


def test_help_has_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "exit status:" in said
    for status in ("0", "1", "2", "3", "130", "141"):
        assert f"\n  {status} " in said
