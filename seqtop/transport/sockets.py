"""Small helpers for ZeroMQ sockets: binding, keep-alive, waking a poller, and terminating."""

from __future__ import annotations

import errno
import socket
import stat
import threading
import uuid
from pathlib import Path
from typing import Any, Final, TypeAlias

import zmq

PairSocket: TypeAlias = zmq.Socket[bytes]

ZAP_DOMAIN: Final = "seqtop"
"""The domain of an authenticator's rules (ZeroMQ RFC 27)."""

_TERMINATION_TIMEOUT_SECONDS: Final = 5.0

_KEEPALIVE_IDLE_SECONDS: Final = 10
_KEEPALIVE_INTERVAL_SECONDS: Final = 5
_KEEPALIVE_PROBES: Final = 3


def bind_conflict(endpoint: str) -> str | None:
    """Returns the reason why an IPC endpoint cannot be bound; `None` if it can.

    libzmq does not check: it removes any file at the path of an IPC endpoint, including the socket
    of a running engine and files that are not sockets. A socket that no process listens on is left
    for libzmq to remove. Endpoints of other transports are not checked.
    """
    path = endpoint.removeprefix("ipc://")
    # "@" names an abstract socket of Linux, "*" a path that libzmq chooses.
    if path == endpoint or path.startswith(("@", "*")):
        return None
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return None
    if not stat.S_ISSOCK(mode):
        return "exists and is not a socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        error = client.connect_ex(path)
    # A full backlog (EAGAIN) also means that a process listens.
    return None if error in (errno.ECONNREFUSED, errno.ENOENT) else "is already in use"


def enable_keepalive(socket: zmq.Socket[Any]) -> None:
    """Enables TCP keep-alive probes, so that a lost peer is noticed within half a minute.

    A subscriber never sends. Without probes, TCP would report for hours neither that a laptop was
    suspended nor that a router dropped the connection. After the report ZeroMQ reconnects.
    ZeroMQ's own heartbeats are not used: with a slow reader they abort the whole process, which may
    be the engine (libzmq#3937, #4364, #4767; seen here with 4.3.5).
    """
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _KEEPALIVE_IDLE_SECONDS
    socket.tcp_keepalive_intvl = _KEEPALIVE_INTERVAL_SECONDS
    socket.tcp_keepalive_cnt = _KEEPALIVE_PROBES


def require_handshake(socket: zmq.Socket[Any]) -> None:
    """Refuses peers that do not begin with the handshake of ZMTP 3. Called before it binds.

    Otherwise libzmq takes any bytes for those of a ZMTP 1.0 peer: at an XPUB socket, of a
    subscriber to everything. When it disconnects, libzmq searches all topics for it, and a
    publisher whose sockets got random bytes did nothing else for seconds (seen with 4.3.5). A ZAP
    domain excludes ZMTP 1.0 and 2.0, with or without an authenticator.
    """
    socket.zap_domain = ZAP_DOMAIN.encode()


def wake_pair(context: zmq.Context[Any]) -> tuple[PairSocket, PairSocket]:
    """Returns two connected sockets that wake a polling thread.

    The thread polls the first one. Another thread sends to the second one.
    """
    endpoint = f"inproc://{uuid.uuid4().hex}"
    receiver: PairSocket = context.socket(zmq.PAIR)
    receiver.bind(endpoint)
    sender: PairSocket = context.socket(zmq.PAIR)
    sender.connect(endpoint)
    return receiver, sender


def terminate(context: zmq.Context[Any], *, linger: int | None = 0) -> None:
    """Closes all sockets of a context and terminates it, within a few seconds.

    In rare cases libzmq loses a message between its own threads during termination (seen with
    4.3.5, when connections had been broken a moment before) and then blocks forever. Neither an
    engine nor a user who quits should block with it. What remains is an idle thread.

    Args:
        context: The context to terminate.
        linger: Milliseconds to continue sending queued messages. `None` uses the linger option of
            each socket.
    """
    thread = threading.Thread(
        target=context.destroy, args=(linger,), name="seqtop-termination", daemon=True
    )
    thread.start()
    thread.join(_TERMINATION_TIMEOUT_SECONDS)
