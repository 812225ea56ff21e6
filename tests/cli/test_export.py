"""`seqtop export` as a user runs it, on real recordings and a real endpoint."""

import csv
import io
import re
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from seqtop.cli.main import main
from tests.support.commands import SEQTOP, assert_one_sentence, run, run_here
from tests.support.events import arrival, engine_info
from tests.support.hand_driven import HandDrivenEngine
from tests.support.trace_format import Trace
from tests.support.waiting import SECONDS


def test_a_trace_goes_to_a_file_of_its_owner_s(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.pftrace"
    done = run(*SEQTOP, "export", recording, "--perfetto", "-o", str(path))
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(rf"seqtop: wrote {path}: \d+ sequences, \d+ steps\n", done.stderr)
    assert Trace(path.read_bytes()).slices["steps"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = run_here(capsys, "export", recording, "--perfetto", "-o", str(path))
    assert again.returncode == 1
    assert again.stderr == f"seqtop: {path} exists already; --force replaces it\n"
    path.chmod(0o644)
    forced = run_here(capsys, "export", recording, "--csv", "-o", str(path), "--force")
    assert forced.returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("incarnation,start_epoch,request_id,")


def test_a_link_is_replaced_and_not_followed(recording: str, tmp_path: Path) -> None:
    path, target = tmp_path / "run.csv", tmp_path / "target"
    target.write_text("years of work")
    target.chmod(0o644)
    path.symlink_to(target)
    assert main(["export", recording, "--csv", "-o", str(path), "--force"]) == 0
    assert path.read_text().startswith("incarnation,start_epoch,request_id,")
    assert not path.is_symlink()
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("years of work", 0o644)


def test_an_export_that_fails_leaves_the_file_that_was_there(
    recording: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.csv"
    path.write_text("old")
    command = f"ulimit -f 1; {' '.join(SEQTOP)} export {recording} --perfetto -o {path} --force"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (
        1,
        f"seqtop: {path} cannot be written: File too large\n",
    )
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.csv"]


def test_csv_goes_to_standard_output(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "export", recording, "--csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout), strict=True))
    assert {"req-1", "req-2"} <= {row["request_id"] for row in rows}
    steps = run_here(capsys, "export", recording, "--csv", "--steps")
    assert len(steps.stdout.splitlines()) == 1 + 80


def test_a_running_engine_s_requests(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine:
        engine.send(engine_info())
        engine.send(arrival(1))
        answering = threading.Thread(target=lambda: (engine.await_viewer(), engine.answer()))
        answering.start()
        done = run(*SEQTOP, "export", endpoint, "--csv", "--timeout", "60")
        answering.join()
    assert done.returncode == 0, done.stderr
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert (row["request_id"], row["status"]) == ("req-1", "waiting")


def test_a_recording_that_was_cut_says_so(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.seqtop"
    path.write_bytes(Path(recording).read_bytes()[:-30])
    done = run_here(capsys, "export", str(path), "--csv")
    assert done.returncode == 0
    assert "its index was rebuilt" in done.stderr
    assert len(done.stdout.splitlines()) > 1


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["/nonexistent", "--csv"], 2, "/nonexistent cannot be opened"),
        (["--csv", "--timeout", "0.3", "tcp://127.0.0.1:1"], 1, "no engine answered"),
        (["tcp://127.0.0.1:1", "--csv", "--steps"], 2, "seqtop record"),
        (["RECORDING", "--perfetto", "--steps"], 2, "--steps needs --csv"),
        (["RECORDING", "--csv", "--merge", "x"], 2, "--merge needs --perfetto"),
        (["RECORDING", "--perfetto", "--merge", "x", "--redact"], 2, "--redact cannot know"),
        (["RECORDING", "--perfetto", "--merge", "/nonexistent"], 2, "/nonexistent cannot be read"),
        (["RECORDING", "--otlp", "--join", "x"], 2, "--join needs --csv"),
        (["RECORDING", "--csv", "--join", "/nonexistent"], 2, "/nonexistent cannot be read"),
        (["RECORDING", "--csv", "--block-size", "16"], 2, "--block-size needs --mooncake"),
        (["RECORDING", "--mooncake", "--block-size", "0"], 2, "'0' is no number of tokens"),
        (["RECORDING", "--parquet"], 2, "name a directory with -o"),
        (["RECORDING", "--parquet", "-o", "/dev/null", "--force"], 1, "Not a directory"),
        (["RECORDING", "--csv", "-o", "/nonexistent/x"], 1, "/nonexistent/x cannot be written"),
        (["RECORDING", "--csv", "-o", "/dev/null", "--force"], 1, "it is not a file"),
    ],
)
def test_mistakes(
    recording: str,
    arguments: list[str],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [recording if argument == "RECORDING" else argument for argument in arguments]
    assert_one_sentence(run_here(capsys, "export", *given), status, words)


def test_a_closed_pipe_is_quiet(recording: str) -> None:
    command = f"{' '.join(SEQTOP)} export {recording} --perfetto | head -c 10"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout) == 10
