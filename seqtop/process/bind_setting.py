"""The user's setting whether and where an engine publishes: `SEQTOP_BIND`, or a file."""

import os

from seqtop.process import files, paths


def read() -> str:
    """Returns `SEQTOP_BIND`, or the first line of the file `bind` beside the configuration.

    It is empty if neither says anything. Never raises.
    """
    bind = os.environ.get("SEQTOP_BIND")
    if bind is not None:
        return bind
    try:
        first_line, *_ = files.read(paths.bind_file(), 4096).split(b"\n")
        return first_line.decode().strip()
    except (OSError, ValueError):
        return ""
