"""Runs of the commands as a user starts them."""

import subprocess
import sys
from typing import Any

import pytest

from seqtop.cli.main import main
from tests.support.forked import start
from tests.support.waiting import SECONDS

SEQTOP = (sys.executable, "-m", "seqtop")
ENGINE = (sys.executable, "-m", "engine_stub")


def run(
    *command: str, timeout: float = SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, which takes `timeout` seconds at most."""
    pipe = subprocess.PIPE
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = pipe
    with start(command, is_short=True, stdout=pipe, stderr=pipe, text=True, **options) as process:
        try:
            output = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *output)


def run_here(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command of `seqtop` in this process: another one spends a second on imports."""
    capsys.readouterr()
    try:
        status: Any = main([*arguments])
    except SystemExit as exit_:
        status = exit_.code
    return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())


def assert_one_sentence(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """Checks the exit status, and that the only output is one line with `words` on stderr."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    for word in words:
        assert word in sentence
    assert done.stdout == ""
