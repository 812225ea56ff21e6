"""A forked program does what one that starts from nothing does."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.commands import SEQTOP
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are forked on Linux only")

Start = Callable[..., subprocess.Popen[str]]


def ended(start: Start, *command: str, **options: Any) -> tuple[int, str, str]:
    """The exit status of a program, and what it writes."""
    pipe = subprocess.PIPE
    with start(command, stdout=pipe, stderr=pipe, text=True, **options) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert (type(process) is forked._Forked) == (start is forked.start)
    return process.returncode, output, errors


@pytest.mark.parametrize("arguments", ["--version", "show run.seqtop --json", "show run", "shw"])
def test_output_and_exit_status_are_the_same(
    arguments: str, recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another folder and with another variable than those of the server."""
    monkeypatch.setenv("COLUMNS", "70")
    command = (*SEQTOP, *arguments.split())
    folder = str(Path(recording).parent)
    assert ended(forked.start, *command, cwd=folder) == ended(
        subprocess.Popen, *command, cwd=folder
    )


def test_a_killed_one_has_the_signal_for_a_status(endpoint: str) -> None:
    command = (*SEQTOP, "record", endpoint, "-o", "/dev/null", "--force", "--timeout", "1e3")
    process = forked.start(command)
    assert process.poll() is None
    process.kill()
    assert process.wait(SECONDS) == -signal.SIGKILL


def test_variables_that_are_read_at_the_start_need_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONUTF8", "0")
    with forked.start((*SEQTOP, "--version"), stdout=subprocess.DEVNULL) as process:
        assert type(process) is subprocess.Popen
