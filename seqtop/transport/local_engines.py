"""The engines of this user on this machine, which `seqtop attach` finds without an endpoint.

Each engine has a file in a directory that only the user can enter: `PID.json` with its endpoint,
or the socket `PID.wake` of a dormant engine. A dormant engine publishes nothing until a client
connects to its socket. It then starts to publish and replies with its endpoint.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from seqtop.process import files

WAKE_SECONDS: Final = 30.0
"""The longest time that an engine may take to start to publish."""

_MAX_FILE_BYTES: Final = 4096
_MAX_ENGINES: Final = 64


class LocalEngineError(Exception):
    """A dormant engine cannot be woken. The message is one sentence for the user."""


class LocalEngine(NamedTuple):
    """An engine on this machine."""

    pid: int
    name: str
    endpoint: str
    """The endpoint of its stream; empty if it is dormant."""


class _Entry(msgspec.Struct):
    endpoint: str
    name: str


def directory() -> Path:
    """Returns the directory of the user's engines, which is created if necessary.

    Raises:
        OSError: It cannot be created, or another user has created it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and Path(base).is_dir():
        path = Path(base, "seqtop")
    else:
        path = Path(tempfile.gettempdir(), f"seqtop-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if status.st_uid != os.getuid() or not is_private:
        raise PermissionError(f"{path} is not a directory that only this user can enter")
    return path


@contextlib.contextmanager
def announced(endpoint: str, name: str, pid: int | None = None) -> Iterator[None]:
    """Lists a process, by default this one, as an engine that publishes at `endpoint`.

    If the file cannot be written, it is not listed.
    """
    path = None
    with contextlib.suppress(OSError):
        path = directory() / f"{pid or os.getpid()}.json"
        with files.writing(path, overwrite=True) as file:
            file.write(msgspec.json.encode(_Entry(endpoint, name)))
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def wake_socket_path(pid: int) -> Path:
    """Returns the path of the socket of a dormant engine; raises `OSError` as `directory`."""
    return directory() / f"{pid}.wake"


def find() -> list[LocalEngine]:
    """Returns the engines of this user, in order of process id. Removes those that have ended."""
    try:
        paths = sorted(directory().iterdir())[: 4 * _MAX_ENGINES]
    except OSError:
        return []
    engines: dict[int, LocalEngine] = {}
    for path in paths:
        if not path.stem.isdecimal() or path.suffix not in (".json", ".wake"):
            continue
        pid = int(path.stem)
        if not _is_running(pid):
            with contextlib.suppress(OSError):
                path.unlink()
        elif path.suffix == ".wake":
            engines.setdefault(pid, LocalEngine(pid, "engine", ""))
        elif (entry := _read(path)) is not None:
            engines[pid] = LocalEngine(pid, entry.name, entry.endpoint)
    return sorted(engines.values())[:_MAX_ENGINES]


def wake(pid: int) -> str:
    """Wakes a dormant engine and returns its endpoint.

    Raises:
        LocalEngineError: There is no such engine, or it cannot publish.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(WAKE_SECONDS)
            client.connect(str(wake_socket_path(pid)))
            reply = client.makefile("rb").readline(_MAX_FILE_BYTES).decode(errors="replace").strip()
    except OSError as error:
        raise LocalEngineError(f"process {pid} is not a dormant engine: {error}") from error
    if not reply.startswith("ipc://"):
        raise LocalEngineError(f"process {pid} cannot publish: {reply or 'it closed the socket'}")
    return reply


def _read(path: Path) -> _Entry | None:
    try:
        return msgspec.json.decode(files.read(path, _MAX_FILE_BYTES), type=_Entry)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True
