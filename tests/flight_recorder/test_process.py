"""The start of a flight recorder's process."""

import os
import sys
from pathlib import Path

import pytest

from seqtop.flight_recorder.process import FlightRecorderError, started
from tests.support.commands import run


def test_recorder_has_a_session_of_its_own(endpoint: str, tmp_path: Path) -> None:
    with started(endpoint, tmp_path) as process:
        assert os.getsid(process.pid) == process.pid
    process.kill()
    process.wait()


def test_options_that_no_shell_understands_are_one_sentence(endpoint: str, tmp_path: Path) -> None:
    with (
        pytest.raises(FlightRecorderError, match="off: No closing quotation"),
        started(endpoint, tmp_path, "--slo 'ttft"),
    ):
        pass


def test_failure_of_the_recorder_is_one_line_and_the_engine_goes_on(
    endpoint: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    program = f"""
from seqtop.flight_recorder.process import started
with started({endpoint!r}, {str(tmp_path / "file" / "records")!r}) as recorder:
    print(recorder.wait())
"""
    done = run(sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (0, "1\n")
    directory = tmp_path / "file" / "records"
    reason = f"{directory} cannot be created: Not a directory"
    assert done.stderr == f"seqtop: the flight recorder is off: {reason}\n"
