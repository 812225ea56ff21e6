"""`seqtop` without a command: shows the engines of this machine, or says how to begin."""

from __future__ import annotations

import socket
import sys
from urllib.parse import urlsplit

from seqtop.transport import local_engines
from seqtop.transport.endpoints import DEFAULT_ENDPOINT

_CONNECT_SECONDS = 0.5

GUIDE = """\
seqtop: no engine answers at {endpoint}. To begin:
  seqtop demo                  start the bundled engine with a workload and show it
  seqtop attach HOST:PORT      show a running engine
  seqtop record -o run.seqtop  record an engine; seqtop replay run.seqtop shows the recording
vLLM publishes with SEQTOP_BIND=tcp://127.0.0.1:5557 in its environment and seqtop installed.
seqtop --help lists all commands.
"""


def run(endpoint: str = DEFAULT_ENDPOINT) -> int:
    """Shows an engine of this machine, or prints a guide; returns the exit status."""
    has_engine = bool(local_engines.find())
    if not has_engine and not is_listening(endpoint):
        sys.stderr.write(GUIDE.format(endpoint=endpoint))
        return 2
    from seqtop.cli.parser import build_parser

    options = build_parser(["attach"]).parse_args(["attach", *([] if has_engine else [endpoint])])
    return int(options.run(options))


def is_listening(endpoint: str) -> bool:
    """Returns whether something accepts connections at a TCP endpoint."""
    address = urlsplit(endpoint)
    try:
        with socket.create_connection((address.hostname, address.port or 0), _CONNECT_SECONDS):
            return True
    except OSError:
        return False
