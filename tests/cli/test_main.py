"""Errors, usage and help of the whole command line."""

import os
import subprocess

import pytest
import zmq

from seqtop.cli.main import main
from tests.support.commands import SEQTOP, assert_one_sentence, run, run_here
from tests.support.forked import start
from tests.support.waiting import MILLISECONDS, SECONDS


def test_unreachable_endpoint() -> None:
    done = run(*SEQTOP, "show", "tcp://127.0.0.1:1", "--timeout", "0.3")
    assert_one_sentence(done, 1, "no engine answered at tcp://127.0.0.1:1", "is one running")


@pytest.mark.parametrize("command", ["show", "attach", "check"])
def test_malformed_endpoint(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, command, "udp://localhost:80")
    assert_one_sentence(done, 2, "'udp://localhost:80'", "tcp://HOST:PORT")


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([os.urandom(64)], ("does not send a seqtop stream",)),
        ([b"kv@events", bytes(8), b"\x93\x01\x02\x03"], ("does not send a seqtop stream",)),
        ([b"seqtop/4/x", bytes(8), b""], ("uses version 4", "this viewer version")),
    ],
)
def test_foreign_publisher(endpoint: str, frames: list[bytes], words: tuple[str, ...]) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind(endpoint)
        viewer = start(
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


def test_the_path_of_a_recording_replays_it(
    recording: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtop.cli.replay.run", lambda options: len(options.file))
    assert main([recording, "--speed", "4"]) == len(recording)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("atach", "no command 'atach', perhaps attach; seqtop --help lists them all"),
        (
            "run.seqtop",
            "no file 'run.seqtop', and no command of that name; seqtop --help lists the commands",
        ),
        (
            "tcp://x:5557",
            "no command 'tcp://x:5557'; to show that engine: seqtop attach tcp://x:5557",
        ),
    ],
)
def test_a_first_word_that_is_no_command(
    word: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == 2
    assert capsys.readouterr().err == f"seqtop: {sentence}\n"
