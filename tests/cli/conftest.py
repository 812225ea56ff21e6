import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqtop.live.session import Session
from tests.support.commands import ENGINE
from tests.support.forked import start
from tests.support.same_questions import answer_once
from tests.support.waiting import SECONDS, wait_until


@pytest.fixture(autouse=True)
def _same_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test computes a prediction once, though it prints it as text and as JSON."""
    answer_once(monkeypatch)


@pytest.fixture(scope="package")  # an engine at work is to end with the tests that need it
def _engine_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """An engine in a process of its own with the demo's workload, and its endpoint.

    It is stopped, and computes nothing, until a test needs it.
    """
    with tempfile.TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{Path(directory, 'e')}"
        process = start(
            [*ENGINE, "serve", "--demo", "--pace", "10", "--bind", endpoint, "--device", "cpu"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert "published at" in process.stdout.readline()
        with Session(endpoint) as session:
            wait_until(lambda: bool(session.state.requests))
        process.send_signal(signal.SIGSTOP)
        yield endpoint, process
        process.send_signal(signal.SIGCONT)
        process.terminate()
        assert process.wait(SECONDS) == 0


@pytest.fixture
def engine(_engine_process: tuple[str, subprocess.Popen[str]]) -> Iterator[str]:
    """The endpoint of an engine that runs the demo's workload."""
    endpoint, process = _engine_process
    process.send_signal(signal.SIGCONT)
    yield endpoint
    process.send_signal(signal.SIGSTOP)
