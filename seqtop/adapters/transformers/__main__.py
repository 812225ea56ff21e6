"""Runs a program whose continuous batching is published.

`python -m seqtop.adapters.transformers script.py …` or `… -m module …` runs it as `python` does.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from seqtop.adapters.transformers import attach_all

_USAGE = """\
usage: python -m seqtop.adapters.transformers script.py [ARGUMENT ...]
       python -m seqtop.adapters.transformers -m module [ARGUMENT ...]

Run a program, and publish what the continuous batching of transformers does in it, at the endpoint
that the environment variable SEQTOP_BIND names.
"""


def main() -> None:
    """Runs the program that the arguments name."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    if is_module:
        del arguments[0]
    if not arguments or arguments[0].startswith("-"):
        is_help = arguments[:1] in (["-h"], ["--help"])
        print(_USAGE, end="", file=sys.stdout if is_help else sys.stderr)
        raise SystemExit(0 if is_help else 2)
    if not is_module and not Path(arguments[0]).exists():
        raise SystemExit(_fail(f"{arguments[0]!r} does not exist"))
    attach_all()
    sys.argv = arguments
    if is_module:
        sys.path.insert(0, "")
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    main()
