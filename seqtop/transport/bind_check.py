"""Is an IPC path free? libzmq does not ask: it removes whatever is in the way."""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path


def in_the_way(endpoint: str) -> str | None:
    """What keeps `endpoint` from being bound, in a few words; `None` if nothing does.

    Looks at IPC paths alone; what somebody listens at is found by connecting to it. A socket
    that nobody listens at any more is left for libzmq to remove.
    """
    path = endpoint.removeprefix("ipc://")
    if path == endpoint or path.startswith(
        ("@", "*")
    ):  # Linux's own names, or one yet to be chosen
        return None
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return None
    if not stat.S_ISSOCK(mode):
        return "exists and is not a socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        refused = caller.connect_ex(path)
    # A queue of callers that is full (EAGAIN) has somebody behind it, too.
    return None if refused in (errno.ECONNREFUSED, errno.ENOENT) else "is already in use"
