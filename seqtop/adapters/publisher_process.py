"""Starts the publisher's process and sends it observations from an engine's process."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from seqtop.adapters.observations import AllRequests, AnyObservation, EngineStopping
from seqtop.transport import sockets
from seqtop.transport.publisher_settings import PublisherSettings

MAX_BACKLOG = 10_000
"""Observations that may wait for the publisher. Each is a step or an arrival."""

_LINGER_MS = 200
"""The longest delay of the engine's shutdown by observations that are still to be sent."""

_CHECK_SECONDS = 1.0
"""The interval at which the publisher's process is checked."""


_open: set[PublisherProcess] = set()
"""References to all open instances. If one were garbage collected, its context would wait for its
socket, which may be collected later."""


class PublisherLostError(Exception):
    """The publisher's process has ended. The message is a sentence for the log.

    Attributes:
        is_orderly: True if it has ended because the last viewer has left.
    """

    def __init__(self, exit_status: int) -> None:
        super().__init__(f"its publisher has ended with exit status {exit_status}")
        self.is_orderly = not exit_status


class PublisherProcess:
    """The publisher's process and the socket to it.

    Sending never waits. If an observation cannot be sent, the following ones are useless too, until
    `AllRequests` has been sent: `wants_all_requests` says when.

    Args:
        endpoint: The ZeroMQ endpoint at which the process publishes.
        settings: The user's settings.

    Attributes:
        num_dropped: Observations that were dropped because the process was too slow.
    """

    def __init__(self, endpoint: str, settings: PublisherSettings) -> None:
        self.num_dropped = 0
        self._directory = tempfile.mkdtemp(prefix="seqtop-")
        address = f"ipc://{Path(self._directory, 'observations')}"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.sndhwm = MAX_BACKLOG
        self._socket.linger = _LINGER_MS
        self._socket.connect(address)  # a socket that binds has no queue before a peer connects
        settings_json = msgspec.json.encode(settings).decode()
        command = [
            sys.executable,
            "-P",  # the working directory may contain a `zmq.py`
            "-m",
            "seqtop.adapters.publisher_main",
            address,
            endpoint,
            settings_json,
        ]
        # The process ends after its standard input, which ends with this process. It also removes
        # the directory, which this process cannot if it is killed.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._checked_at = time.monotonic()
        self._is_behind = self._is_wanted = False
        self._num_announced = 0
        _open.add(self)

    def send(self, observation: AnyObservation) -> None:
        """Sends an observation, or drops it if the process is too slow.

        Raises:
            PublisherLostError: The process has ended.
        """
        is_everything = isinstance(observation, AllRequests)
        if isinstance(observation, AllRequests):
            observation.num_lost = self.num_dropped - self._num_announced
        if self._is_behind and not is_everything:
            self.num_dropped += 1
        else:
            try:
                self._socket.send(encode(observation), zmq.DONTWAIT)
            except zmq.Again:
                self.num_dropped += 1
                self._is_behind = True
            else:
                if is_everything:
                    self._num_announced, self._is_behind = self.num_dropped, False
        self._check_if_due()

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    @property
    def wants_all_requests(self) -> bool:
        """True once after observations were lost; checked every second."""
        wanted, self._is_wanted = self._is_wanted, False
        return wanted

    def _check_if_due(self) -> None:
        if time.monotonic() - self._checked_at <= _CHECK_SECONDS:
            return
        self._checked_at = time.monotonic()
        if self._process.poll() is not None:
            raise PublisherLostError(self._process.returncode)
        self._is_wanted = self._is_behind
        while self._socket.poll(0):
            self._socket.recv(zmq.DONTWAIT)
            self._is_wanted = True

    def close(self, reason: str, *, failed: bool = False) -> None:
        """Closes the connection. The process ends when it has published everything it received.

        Args:
            reason: The reason, in one sentence.
            failed: True if the engine cannot continue.
        """
        if self._socket.closed:
            return
        _open.discard(self)
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(encode(EngineStopping(time.time(), reason, failed)), zmq.DONTWAIT)
        sockets.terminate(self._context, linger=_LINGER_MS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)


_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(observation: AnyObservation) -> bytes:
    """Encodes an observation, even if a client's request contains what MessagePack cannot carry.

    Numbers beyond 64 bits are limited, and halves of surrogate pairs escaped.
    """
    try:
        return _ENCODER.encode(observation)
    except (OverflowError, TypeError, ValueError):
        return _ENCODER.encode(_encodable(msgspec.to_builtins(observation, enc_hook=repr)))


def _encodable(value: Any) -> Any:
    """Returns `value` with its integers limited to 64 bits and its unpaired surrogates escaped."""
    match value:
        case bool():
            return value
        case int():
            return max(-(2**63), min(value, 2**63 - 1))
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list() | tuple():
            return [_encodable(item) for item in value]
        case dict():
            return {_encodable(key): _encodable(item) for key, item in value.items()}
        case _:
            return value
