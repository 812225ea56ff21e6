"""Starts the publisher's process and sends it observations from vLLM's EngineCore process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import zmq

from seqtop.adapters.vllm.observations import AnyObservation, EngineStopping
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.transport import sockets

MAX_BACKLOG = 10_000
"""Observations that may wait for the publisher. Each is a step or an arrival."""

_LINGER_MS = 200
"""The longest delay of vLLM's shutdown by observations that are still to be sent."""

_CHECK_SECONDS = 1.0
"""The interval at which the publisher's process is checked."""


_open: set[PublisherProcess] = set()
"""References to all open instances. If one were garbage collected, its context would wait for its
socket, which may be collected later."""


class PublisherLostError(Exception):
    """The publisher's process has ended or is too slow. The message is a sentence for the log."""


class PublisherProcess:
    """The publisher's process and the socket to it.

    Sending never waits. An observation that cannot be sent is an error, since later ones depend on
    it.

    Args:
        endpoint: The ZeroMQ endpoint at which the process publishes.
        settings: The user's settings.
    """

    def __init__(self, endpoint: str, settings: AdapterSettings) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._directory = tempfile.TemporaryDirectory(prefix="seqtop-")
        address = f"ipc://{Path(self._directory.name, 'observations')}"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.sndhwm = MAX_BACKLOG
        self._socket.linger = _LINGER_MS
        self._socket.connect(address)  # a socket that binds has no queue before a peer connects
        settings_json = msgspec.json.encode(settings).decode()
        command = [
            sys.executable,
            "-m",
            "seqtop.adapters.vllm.publisher_main",
            address,
            endpoint,
            settings_json,
        ]
        # The process ends after its standard input, which ends with this process.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._checked_at = time.monotonic()
        _open.add(self)

    def send(self, observation: AnyObservation) -> None:
        """Sends an observation.

        Raises:
            PublisherLostError: The process has ended or is too slow.
        """
        try:
            self._socket.send(self._encoder.encode(observation), zmq.DONTWAIT)
        except zmq.Again:
            self._check_process()
            raise PublisherLostError(
                f"its publisher is more than {MAX_BACKLOG:,} messages behind"
            ) from None
        if time.monotonic() - self._checked_at > _CHECK_SECONDS:
            self._check_process()

    def _check_process(self) -> None:
        self._checked_at = time.monotonic()
        if self._process.poll() is not None:
            raise PublisherLostError(
                f"its publisher has ended with exit status {self._process.returncode}"
            )

    def close(self, reason: str) -> None:
        """Closes the connection. The process ends when it has published everything it received."""
        if self._socket.closed:
            return
        _open.discard(self)
        with contextlib.suppress(zmq.ZMQError):
            last = self._encoder.encode(EngineStopping(time.time(), reason))
            self._socket.send(last, zmq.DONTWAIT)
        sockets.terminate(self._context, linger=_LINGER_MS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._directory.cleanup()
