"""The reach of another user of this machine: sockets, recordings, state, configuration, keys."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from seqtop.history import FileWriter
from seqtop.history.copying import save
from seqtop.live.session import Session
from seqtop.process import paths
from seqtop.state import EngineState
from seqtop.transport import curve_keys
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import MessagePublisher
from seqtop.tui.settings import SavedState
from tests.support.events import arrival, engine_info

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody can enter, unlike those of pytest."""
    with TemporaryDirectory(prefix="sq") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def refused(path: Path) -> list[str]:
    """Tries to read, write, replace and connect to a file as another user; returns what failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        names = []
        for name, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY | os.O_APPEND)):
            try:
                os.open(path, flags)
            except OSError:
                names.append(name)
        try:
            path.with_name("planted").touch()
            path.with_name("planted").replace(path)
        except OSError:
            names.append("replace")
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
        except OSError as error:
            names.append("connect" if error.errno == errno.EACCES else errno.errorcode[error.errno])
        os.write(writing, msgspec.json.encode(names))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        failed: list[str] = msgspec.json.decode(answer.read())
    os.waitpid(child, 0)
    return failed


def test_the_test_sees_what_another_user_can_do(folder: Path) -> None:
    path = folder / "open"
    path.touch()
    folder.chmod(0o777)
    path.chmod(0o666)
    assert refused(path) == ["ECONNREFUSED"]


def test_files_are_their_owners(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(folder / variable))
    recording, copy = folder / "run.seqtop", folder / "copy.seqtop"
    with FileWriter(recording), Session("ipc:///nowhere") as session:
        assert {"read", "write", "replace", "connect"} <= {*refused(recording)}
        save(session.history, copy)
    assert SavedState(paths.state_file()).save(filter="prompt_text:secret") is None
    _, secret = curve_keys.create_pair(folder / "me")
    for path in (recording, copy, paths.state_file(), secret):
        assert path.exists()
        assert {"read", "write", "replace", "connect"} <= {*refused(path)}, path


def test_sockets_are_their_owners(folder: Path) -> None:
    """Also in a folder that everybody can enter."""
    endpoint = f"ipc://{folder}/engine"
    with MessagePublisher(endpoint, engine_info(), EngineState()) as engine:
        engine.publish(arrival(1))
        for address in (endpoint, snapshot_endpoint(endpoint)):
            path = Path(address.removeprefix("ipc://"))
            assert path.is_socket()
            assert {"read", "write", "replace", "connect"} <= {*refused(path)}, path
