"""Messages of a command on standard error, and documents on standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import ParamSpec

from seqtop.text.sanitize import safe_line

P = ParamSpec("P")

INCOMPLETE = 3
"""The exit status if a command did its work, but not everything could be read."""


def warn(message: str) -> None:
    """Prints one line on standard error."""
    print(f"seqtop: {safe_line(message)}", file=sys.stderr)


def print_document(text: str) -> None:
    """Prints JSON or XML on standard output, in UTF-8 whatever the locale is."""
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()


def print_answer(
    options: argparse.Namespace,
    as_json: Callable[P, str],
    as_text: Callable[P, str],
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Prints an answer as JSON with `--json`, else as text."""
    if options.json:
        print_document(as_json(*args, **kwargs))
    else:
        print(as_text(*args, **kwargs))


def fail(message: str, *, status: int = 1) -> int:
    """Prints one line on standard error and returns the exit status `status`."""
    warn(message)
    return status
