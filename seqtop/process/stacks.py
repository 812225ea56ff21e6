"""The stacks of all threads of a process, for another process that asks for them.

A thread of the process waits at a Unix socket in a private directory. It costs nothing until
somebody connects, and answers while the interpreter runs: not if one thread never gives up its
lock. A signal would be answered then, too, but a process that has lost its handler would die of it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 2**20
"""Bytes of an answer that are read."""
_SECONDS: Final = 2.0


class StackServer:
    """Answers with the stacks of this process's threads, until it is closed.

    Raises:
        OSError: There is no room for the directory, or no thread can be started.
    """

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="seqtop-")  # only this user may enter it
        self.path = str(Path(self._directory, "stacks"))
        """The path of the socket."""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(self.path)
            self._socket.listen(1)
            threading.Thread(target=self._run, name="seqtop-stacks", daemon=True).start()
        except (OSError, RuntimeError) as error:
            self.close()
            raise OSError(f"no stacks can be asked for: {error}") from error

    def close(self) -> None:
        """Ends the thread, and removes the directory."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # `close` alone would not end `accept`
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            # To a file first: a dump holds the interpreter's lock, also while a reader is slow.
            with (
                connection,
                contextlib.suppress(OSError),
                tempfile.TemporaryFile(dir=self._directory) as file,
            ):
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(0)
                connection.settimeout(_SECONDS)
                connection.sendall(file.read(MAX_BYTES))


def read(path: str, seconds: float = _SECONDS) -> str:
    """Returns the stacks of a process, the newest call of each thread first.

    Args:
        path: The path of its `StackServer`.
        seconds: The time it has.

    Raises:
        OSError: It has ended, or does not answer: its interpreter may be blocked.
    """
    deadline = time.monotonic() + seconds
    answer = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        while len(answer) < MAX_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            part = connection.recv(min(65_536, MAX_BYTES - len(answer)))
            if not part:
                break
            answer += part
    return answer.decode(errors="replace")
