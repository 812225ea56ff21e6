"""Hands notes from vLLM's EngineCore process to a publisher's process, which it starts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import zmq

from seqtop.adapters.vllm.notes import AnyNote, EngineStopping
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.transport import sockets

MAX_BACKLOG = 10_000
"""Notes that may wait for the publisher; each is a step, or an arrival."""

_LINGER_MS = 200
"""How long vLLM may be held up, once, at the end, by what has not been taken yet."""

_LOOK_AFTER_SECONDS = 1.0
"""How often to see whether the publisher still lives."""


_open: set[Outbox] = set()
"""Keeps those that nobody closes from being collected, for a context that is waits for its
sockets, which may be collected after it."""


class PublisherLostError(Exception):
    """The publisher's process has ended, or does not keep up; `str()` is a sentence for the log."""


class Outbox:
    """Sends without waiting; what cannot be sent at once is an error, as notes build on another.

    Args:
        endpoint: Where the publisher is to publish.
        settings: How.
    """

    def __init__(self, endpoint: str, settings: AdapterSettings) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._directory = tempfile.TemporaryDirectory(prefix="seqtop-")
        address = f"ipc://{Path(self._directory.name, 'notes')}"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.sndhwm = MAX_BACKLOG
        self._socket.linger = _LINGER_MS
        self._socket.connect(address)  # a socket that binds has no queue until somebody connects
        how = msgspec.json.encode(settings).decode()
        command = [sys.executable, "-m", "seqtop.adapters.vllm.publish", address, endpoint, how]
        # Its standard input never says anything, but it ends when this process does.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._looked_at = time.monotonic()
        _open.add(self)

    def send(self, note: AnyNote) -> None:
        """Hand `note` over.

        Raises:
            PublisherLostError: there is nobody to take it.
        """
        try:
            self._socket.send(self._encoder.encode(note), zmq.DONTWAIT)
        except zmq.Again:
            self._look_after()
            raise PublisherLostError(
                f"its publisher is more than {MAX_BACKLOG:,} messages behind"
            ) from None
        if time.monotonic() - self._looked_at > _LOOK_AFTER_SECONDS:
            self._look_after()

    def _look_after(self) -> None:
        self._looked_at = time.monotonic()
        if self._process.poll() is not None:
            raise PublisherLostError(
                f"its publisher has ended with exit status {self._process.returncode}"
            )

    def close(self, reason: str) -> None:
        """Let go of the publisher, which ends once it has sent what it was given."""
        if self._socket.closed:
            return
        _open.discard(self)
        with contextlib.suppress(zmq.ZMQError):
            goodbye = self._encoder.encode(EngineStopping(time.time(), reason))
            self._socket.send(goodbye, zmq.DONTWAIT)
        sockets.terminate(self._context, linger=_LINGER_MS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._directory.cleanup()
