"""A publisher's process of its own, and the socket between it and the engine's process.

The engine's thread only encodes what happened and hands it to libzmq. Building messages, sending
them and answering viewers happens in the other process, which the interpreter lock does not couple
to the engine. `PublisherProcess` is the engine's end, `EngineConnection` the other one. What is
sent is up to them; an empty message asks the engine for its whole state.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import zmq

from seqtop.transport import sockets

MAX_BACKLOG = 10_000
"""Messages that may wait for the publisher. Each is a step or an arrival."""

_NICENESS = 10
"""The engine's processes have priority."""

_LINGER_MS = 200
"""The longest delay of the end of a process by messages that are still to be sent."""

_CHECK_SECONDS = 1.0
"""The interval at which the publisher's process is checked."""

_POLL_MS = 200
_SECONDS_BETWEEN_REQUESTS = 1.0
_SECONDS_FOR_STATE = 10.0
"""The time after which a state that was requested and has not come is requested again. Two answers
would be two gaps for viewers, so the time is long: a busy machine is no reason to ask twice."""

_open: set[PublisherProcess] = set()
"""References to all open instances. If one were garbage collected, its context would wait for its
socket, which may be collected later."""


def address_in(directory: str) -> str:
    """Returns the ZeroMQ endpoint of the socket in a directory."""
    return f"ipc://{Path(directory, 'engine')}"


class PublisherLostError(Exception):
    """The publisher's process has ended. The message is a sentence for the log.

    Attributes:
        is_orderly: True if it has ended because the last viewer has left.
    """

    def __init__(self, exit_status: int) -> None:
        super().__init__(f"its publisher has ended with exit status {exit_status}")
        self.is_orderly = not exit_status


@contextlib.contextmanager
def _inherited_batch_policy() -> Iterator[None]:
    """Gives threads and processes that start meanwhile Linux's policy `SCHED_BATCH`; see sched(7).

    Each step wakes them, often on the core of the engine's thread, from which a thread of the usual
    policy takes the core then.
    """
    is_changed = False
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or a sandbox forbids it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            is_changed = True
    try:
        yield
    finally:
        if is_changed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class PublisherProcess:
    """The publisher's process and the socket to it. To be used on the engine's thread.

    Sending never waits. If a message cannot be sent, the following ones are useless too, until the
    whole state has been sent: `is_state_wanted` says when.

    Args:
        module: The module to run. Its first argument is the directory of an `EngineConnection`.
        arguments: Further arguments.

    Attributes:
        num_dropped: Messages that were dropped because the process was too slow.
    """

    def __init__(self, module: str, arguments: Iterable[str] = ()) -> None:
        self.num_dropped = 0
        self._directory = tempfile.mkdtemp(prefix="seqtop-")
        self._context = zmq.Context()
        with _inherited_batch_policy():
            self._start(module, arguments)
        self._checked_at = time.monotonic()
        self._is_behind = self._is_state_wanted = False
        self._num_announced = 0
        self._received: deque[bytes] = deque()
        _open.add(self)

    def _start(self, module: str, arguments: Iterable[str]) -> None:
        """Starts ZeroMQ's thread and the process."""
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.sndhwm = MAX_BACKLOG
        self._socket.linger = _LINGER_MS
        self._socket.connect(
            address_in(self._directory)
        )  # a socket that binds has no queue before a peer connects
        # With -P, as the working directory may contain a `zmq.py`. The process ends after its
        # standard input, which ends with this process. It also removes the directory, which this
        # process cannot if it is killed.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, self._directory, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def send(self, message: bytes) -> None:
        """Sends a message, or drops it if the process is too slow.

        Raises:
            PublisherLostError: The process has ended.
        """
        if self._is_behind:
            self.num_dropped += 1
        else:
            self._try_to_send(message)
        self._check_if_due()

    def lose(self) -> None:
        """Counts a message that could not be encoded as dropped; the whole state is due then."""
        self.num_dropped += 1
        self._is_behind = True

    def send_state(self, message: bytes) -> None:
        """Sends the engine's whole state, which replaces the `num_lost` messages before it.

        Raises:
            PublisherLostError: The process has ended.
        """
        num_dropped = self.num_dropped
        if self._try_to_send(message):
            self._num_announced, self._is_behind = num_dropped, False
        self._check_if_due()

    def _try_to_send(self, message: bytes) -> bool:
        try:
            self._socket.send(message, zmq.DONTWAIT)
        except zmq.Again:
            self.num_dropped += 1
            self._is_behind = True
            return False
        return True

    @property
    def num_lost(self) -> int:
        """Messages that were dropped since the whole state was sent."""
        return self.num_dropped - self._num_announced

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    @property
    def is_state_wanted(self) -> bool:
        """True once after messages were lost; checked every second."""
        is_wanted, self._is_state_wanted = self._is_state_wanted, False
        return is_wanted

    def receive(self, timeout: float = 0.0) -> bytes | None:
        """Returns the oldest message from the process, or `None`.

        Args:
            timeout: Seconds to wait for one.
        """
        # Asking the socket takes a tenth of the time of polling it.
        if not self._received and (timeout or self._socket.get(zmq.EVENTS) == zmq.POLLIN):
            self._read(int(timeout * 1000))
        return self._received.popleft() if self._received else None

    def _read(self, timeout_ms: int = 0) -> None:
        while self._socket.poll(timeout_ms):
            timeout_ms = 0
            if message := self._socket.recv(zmq.DONTWAIT):
                self._received.append(message)
            else:
                self._is_state_wanted = True

    def _check_if_due(self) -> None:
        if time.monotonic() - self._checked_at <= _CHECK_SECONDS:
            return
        self._checked_at = time.monotonic()
        if self._process.poll() is not None:
            raise PublisherLostError(self._process.returncode)
        self._is_state_wanted = self._is_behind
        self._read()

    def close(self, message: bytes, *, timeout: float = 0.0) -> None:
        """Sends a last message. The process ends when it has published everything it received.

        Args:
            message: The last message.
            timeout: Seconds to wait for the end of the process.
        """
        if self._socket.closed:
            return
        _open.discard(self)
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(message, zmq.DONTWAIT)
        if timeout:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        sockets.terminate(self._context, linger=_LINGER_MS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class EngineConnection:
    """The publisher's end: receives until there is no more and the engine's process has ended.

    A context manager, which closes the socket and removes the directory.

    Args:
        directory: The directory of the socket: the first argument of the publisher's process.
        engine_ended: Set when the engine's process has ended.

    Attributes:
        is_unwanted: Returns whether to end although the engine continues.
    """

    def __init__(self, directory: str, engine_ended: threading.Event) -> None:
        self.is_unwanted: Callable[[], bool] = lambda: False
        self._directory = directory
        self._engine_ended = engine_ended
        self._requested_at = -_SECONDS_BETWEEN_REQUESTS
        self._is_state_awaited = False

    def __enter__(self) -> EngineConnection:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._awake, self._waker = sockets.wake_pair(self._context)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._awake, zmq.POLLIN)
        # Otherwise the engine has ended, and its directory is removed.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.bind(address_in(self._directory))
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(_LINGER_MS)
        shutil.rmtree(self._directory, ignore_errors=True)

    def __iter__(self) -> Iterator[bytes]:
        """Yields the messages, and an empty one after each call of `wake`."""
        while self._socket.last_endpoint and not self.is_unwanted():
            has_ended = self._engine_ended.is_set()
            ready = dict(self._poller.poll(_POLL_MS))
            if self._awake in ready:
                self._awake.recv()
                yield b""
            if self._socket in ready:
                yield self._socket.recv()
            elif has_ended:
                return

    def wake(self) -> None:
        """Makes the iteration yield an empty message. Called on any one other thread."""
        with contextlib.suppress(zmq.ZMQError):
            self._waker.send(b"", zmq.DONTWAIT)

    def send(self, message: bytes) -> None:
        """Sends a message to the engine, unless the engine does not read any."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(message, zmq.DONTWAIT)

    def request_state(self) -> None:
        """Requests the whole state from the engine, at most once a second.

        Until `state_came` is called, it is requested again only after ten seconds.
        """
        now = time.monotonic()
        pause = _SECONDS_FOR_STATE if self._is_state_awaited else _SECONDS_BETWEEN_REQUESTS
        if now - self._requested_at >= pause:
            self._requested_at, self._is_state_awaited = now, True
            self.send(b"")

    def state_came(self) -> None:
        """Notes that the engine has sent its whole state."""
        self._is_state_awaited = False


def give_way() -> None:
    """Lowers the priority of the publisher's process below that of the engine."""
    os.nice(_NICENESS)
