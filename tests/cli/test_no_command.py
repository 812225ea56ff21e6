"""`seqtop` without a command."""

import socket
from pathlib import Path

import pytest

from seqtop.cli import no_command
from seqtop.cli.main import main


@pytest.fixture(autouse=True)
def _own_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine of another test is found."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_without_an_engine_it_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nothing listens on it
        endpoint = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        assert no_command.run(endpoint) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert endpoint in printed.err
    for command in ("seqtop demo", "seqtop attach HOST:PORT", "seqtop record", "seqtop --help"):
        assert command in printed.err


def test_an_engine_of_this_machine_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert no_command.run(f"tcp://127.0.0.1:{server.getsockname()[1]}") == 1
    assert "the app needs a terminal" in capsys.readouterr().err, "attach has run"


def test_no_argument_is_no_wrong_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_command, "is_listening", lambda _: False)
    assert main([]) == 2
    assert "To begin" in capsys.readouterr().err
