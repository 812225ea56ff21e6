"""A dormant engine: it does nothing but wait, on a socket of the user's own, to be woken.

`seqtop attach` connects to the socket. A thread, which has slept until then, starts the
publisher's process. Between two steps, the scheduler's thread wraps the scheduler's methods. When
the last viewer has left, the publisher's process ends, and the next step restores the methods.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from seqtop.adapters.vllm.attachment import Attachment
from seqtop.live import local_engines
from seqtop.transport.publisher_settings import PublisherSettings

_log = logging.getLogger("vllm.seqtop")

_BIND_SECONDS: Final = 25.0
_POLL_SECONDS: Final = 0.02


class DormantEngine:
    """Waits for clients that wake the engine of one scheduler.

    Args:
        scheduler: vLLM's V1 scheduler.
        settings: The user's settings.

    Raises:
        OSError: The socket cannot be created.
    """

    def __init__(self, scheduler: Any, settings: PublisherSettings) -> None:
        self._scheduler = scheduler
        self._settings = settings
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
        endpoint = f"ipc://{local_engines.directory() / f'{os.getpid()}.vllm'}"
        attachment = Attachment(self._scheduler, self._settings, endpoint)
        deadline = time.monotonic() + _BIND_SECONDS
        while not Path(endpoint.removeprefix("ipc://")).exists():
            if not attachment.is_published or time.monotonic() > deadline:
                attachment.close("the publisher cannot start")
                raise RuntimeError("its publisher did not start; see vLLM's log")
            time.sleep(_POLL_SECONDS)
        self._attachment = attachment

        def attach() -> None:
            if before is not None:
                before.detach()
            attachment.attach()

        _before_next_schedule(self._scheduler, attach)
        _log.info("seqtop: awake, publishing at %s", endpoint)
        return endpoint


def _before_next_schedule(scheduler: Any, action: Callable[[], None]) -> None:
    """Runs `action` on the scheduler's thread, before its next call of `schedule`."""
    original = scheduler.schedule
    is_own = getattr(original, "__func__", None) is not type(scheduler).schedule

    def schedule(*args: Any, **kwargs: Any) -> Any:
        if is_own:
            scheduler.schedule = original
        else:
            del scheduler.schedule
        action()
        return scheduler.schedule(*args, **kwargs)

    scheduler.schedule = schedule
