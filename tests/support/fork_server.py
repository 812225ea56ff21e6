"""A process that forks programs in Python, which then need not import packages again.

`forked.py` starts it with the descriptor of a socket, and the modules to import. Each message is a
JSON object and descriptors: standard input, output and error, and one for the status of the end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

_MAX_MESSAGE = 200_000
"""Bytes; most are the environment's."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # what is not installed, the program misses itself
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy all of its pages
    if (program := _serve(control)) is not None:
        # The interpreter ends after it, as that of any program.
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def _serve(control: socket.socket) -> str | None:
    """Forks a child for each message; returns its module in a child, and `None` at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for whoever runs the tests
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wakeup, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    """Descriptors for the status of each child, by its process id."""
    while True:
        ready, _, _ = select.select([control.fileno(), wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4_096)
            _report_ended(statuses)
        if control.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, _MAX_MESSAGE, 4)
        if not data:
            return None
        *streams, status = descriptors
        if pid := os.fork():
            statuses[pid] = status
            control.send(str(pid).encode())
            for descriptor in streams:
                os.close(descriptor)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        control.close()
        for descriptor in (wakeup, write_end, status, *statuses.values()):
            os.close(descriptor)
        return _become(json.loads(data), streams)


def _report_ended(statuses: dict[int, int]) -> None:
    for pid, descriptor in [*statuses.items()]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(BrokenPipeError):  # nobody wants to know
                os.write(descriptor, b"%d" % os.waitstatus_to_exitcode(status))
            os.close(descriptor)
            del statuses[pid]


def _become(order: dict[str, Any], streams: list[int]) -> str:
    """Gives this process what a new one would have; returns the module that it runs."""
    if order["start_new_session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    same: Any = {"encoding": sys.stdout.encoding, "closefd": False}
    errors = sys.stdout.errors
    sys.stdin = sys.__stdin__ = os.fdopen(0, errors=errors, **same)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", errors=errors, **same)  # type: ignore[misc]
    errors = "backslashreplace"
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors=errors, **same)  # type: ignore[misc]
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    gc.set_threshold(*order["collector"])
    program, *arguments = order["command"]
    sys.argv = ["-m", *arguments]
    sys.path[0] = order["cwd"]
    return str(program)


if __name__ == "__main__":
    main()
