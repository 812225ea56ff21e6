"""`seqtop serve`: options and errors."""

import socket

import pytest

from seqtop.cli.main import main
from tests.support.commands import SEQTOP, run

pytest.importorskip("textual_serve", reason="textual-serve is not installed")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], ("no authentication", "--insecure")),
        (["--host", "example.org"], ("no authentication", "--insecure")),
        (["--port", "0"], ("'0' is not a port",)),
        (["show"], ("attach, replay, demo",)),
        (["--", "attach", "--bogus"], ("seqtop attach: ", "'--bogus'")),
        (["--", "attach", "foo"], ("'foo' is not an endpoint",)),
        (["--", "attach", "--server-key", "x"], ("belong together",)),
        (["--", "demo", "--device", "abacus"], ("abacus", "cuda")),
        (["--", "attach", "--kv-events", "foo"], ("'foo' is not an endpoint",)),
    ],
)
def test_mistakes(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["serve", *arguments])
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2
    said = capsys.readouterr()
    assert said.out == ""
    for word in words:
        assert word in said.err


def test_a_recording_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--", "replay", "/nonexistent"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        "seqtop: /nonexistent cannot be opened: No such file or directory\n",
    )


def test_a_port_that_is_taken(recording: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(*SEQTOP, "serve", "--port", port, "--", "replay", recording)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} cannot be used" in done.stderr
    assert "choose another port with --port" in done.stderr
    assert "Traceback" not in done.stderr
