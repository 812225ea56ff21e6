"""Noticing that the machine at the other end of a connection is gone."""

from typing import Any

import zmq

_IDLE_SECONDS, _BETWEEN_PROBES_SECONDS, _PROBES = 10, 5, 3


def keep_alive(socket: zmq.Socket[Any]) -> None:
    """Have the system ask, on an idle TCP connection, whether the other side is still there.

    A viewer's end of the stream never sends, so without this TCP would not tell it for hours that
    a laptop had slept or a router had forgotten the connection; ZeroMQ then connects anew. Its own
    heartbeats would do the same, but where a viewer reads slowly they abort the whole process,
    which may be the engine's (libzmq#3937, #4364, #4767; seen here with 4.3.5).
    """
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _IDLE_SECONDS
    socket.tcp_keepalive_intvl = _BETWEEN_PROBES_SECONDS
    socket.tcp_keepalive_cnt = _PROBES
