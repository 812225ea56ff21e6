"""A dormant engine: it does nothing but wait, on a socket of the user's own, to be woken.

`seqtop attach` connects to the socket. A thread, which has slept until then, starts the
publisher's process. Between two steps, the scheduler's thread wraps the scheduler's methods. When
the last viewer has left, the publisher's process ends, and the next step restores the methods.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from seqtop.adapters.attachment import Attachment, Host
from seqtop.transport import local_engines

_BIND_SECONDS: Final = 25.0
_POLL_SECONDS: Final = 0.02


class DormantEngine:
    """Waits for clients that wake the engine of one scheduler.

    Args:
        host: The software with the scheduler.
        attachment_of: Starts the publisher of the scheduler at an endpoint.
        before_next_step: Calls a function on the scheduler's thread, before its next step.

    Raises:
        OSError: The socket cannot be created.
    """

    def __init__(
        self,
        host: Host,
        attachment_of: Callable[[str], Attachment],
        before_next_step: Callable[[Callable[[], None]], None],
    ) -> None:
        self._host = host
        self._attachment_of = attachment_of
        self._before_next_step = before_next_step
        self._attachment: Attachment | None = None
        path = local_engines.wake_socket_path(os.getpid())
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._serve, name="seqtop-dormant", daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._socket.accept()
            with client:
                try:
                    reply = self._wake()
                except Exception as error:  # noqa: BLE001 - it must not end this thread
                    reply = f"{type(error).__name__}: {error}"
                with contextlib.suppress(OSError):
                    client.sendall(f"{reply}\n".encode(errors="replace"))

    def _wake(self) -> str:
        """Starts the publisher unless it runs; returns its endpoint."""
        before = self._attachment
        if before is not None and before.is_published:
            return before.endpoint
        endpoint = f"ipc://{local_engines.directory() / f'{os.getpid()}.engine'}"
        attachment = self._attachment_of(endpoint)
        deadline = time.monotonic() + _BIND_SECONDS
        while not Path(endpoint.removeprefix("ipc://")).exists():
            if not attachment.is_published or time.monotonic() > deadline:
                attachment.close("the publisher cannot start")
                raise RuntimeError(f"its publisher did not start; see {self._host.name}'s log")
            time.sleep(_POLL_SECONDS)
        self._attachment = attachment

        def attach() -> None:
            if before is not None:
                before.detach()
            attachment.attach()

        self._before_next_step(attach)
        self._host.log.info("seqtop: awake, publishing at %s", endpoint)
        return endpoint


def before_next_call(owner: Any, name: str, action: Callable[[], None]) -> None:
    """Calls `action` before the next call of a method of `owner`, on the thread of that call."""
    original = getattr(owner, name)
    is_own = getattr(original, "__func__", None) is not getattr(type(owner), name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
        action()
        return getattr(owner, name)(*args, **kwargs)

    setattr(owner, name, wrapper)
