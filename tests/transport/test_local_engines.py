"""The engines of this user are found without an endpoint."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from seqtop.cli.main import main
from seqtop.transport import local_engines
from seqtop.transport.local_engines import LocalEngine, LocalEngineError


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with TemporaryDirectory(prefix="sq") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


def test_an_engine_is_listed_while_it_publishes() -> None:
    with local_engines.announced("ipc:///tmp/e", "poems"):
        assert local_engines.find() == [LocalEngine(os.getpid(), "poems", "ipc:///tmp/e")]
    assert local_engines.find() == []


def test_files_of_ended_processes_are_removed_and_malformed_ones_ignored() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    directory = local_engines.directory()
    stale, malformed = directory / f"{ended.pid}.json", directory / f"{os.getpid()}.json"
    stale.write_text('{"endpoint": "ipc:///e", "name": "gone"}')
    malformed.write_text("[")
    (directory / "other").write_text("")
    assert local_engines.find() == []
    assert not stale.exists()
    assert malformed.exists()


def test_pipes_and_links_stop_nobody(tmp_path: Path) -> None:
    path, target = local_engines.directory() / f"{os.getpid()}.json", tmp_path / "target"
    os.mkfifo(path)
    assert local_engines.find() == []
    with local_engines.announced("ipc:///tmp/e", "poems"):
        assert local_engines.find() == [], "a pipe is not replaced"
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    target.write_text("years of work")
    with local_engines.announced("ipc:///tmp/e", "poems"):
        assert len(local_engines.find()) == 1
    assert target.read_text() == "years of work"


def test_a_directory_that_others_can_enter_is_not_used(runtime_directory: Path) -> None:
    path = runtime_directory / "seqtop"
    path.mkdir()
    path.chmod(0o755)
    with pytest.raises(PermissionError, match="only this user"):
        local_engines.directory()
    assert local_engines.find() == []
    path.rmdir()
    assert stat.S_IMODE(local_engines.directory().stat().st_mode) == 0o700


def test_waking_what_is_not_dormant_is_refused() -> None:
    with pytest.raises(LocalEngineError, match=f"process {os.getpid()} is not a dormant engine"):
        local_engines.wake(os.getpid())


def test_attach_lists_several(capsys: pytest.CaptureFixture[str]) -> None:
    pids = os.getpid(), os.getppid()
    directory = local_engines.directory()
    (directory / f"{pids[0]}.json").write_text('{"endpoint": "ipc:///e", "name": "po\\u001bems"}')
    (directory / f"{pids[1]}.wake").touch()
    assert main(["attach"]) == 0
    shown = capsys.readouterr().out
    assert "(publishes): seqtop attach ipc:///e" in shown
    assert f"engine (dormant): seqtop attach {pids[1]}" in shown
    assert "\x1b" not in shown
