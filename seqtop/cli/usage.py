"""The whole command line: its options, an example of each use and its exit statuses."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable

from seqtop import __version__
from seqtop.argparse_ext import CommandParser
from seqtop.cli import NAMES

EXAMPLES = """\
examples:
  seqtop demo                              watch the bundled engine on this machine
  engine-stub serve --control              run the bundled engine for others to look at
  seqtop attach tcp://127.0.0.1:5557       look at a running engine
  seqtop attach --kv-events tcp://127.0.0.1:5557    watch the prefix cache of any engine that tells
  seqtop record -o run.seqtop              write down what it does, until Ctrl-C
  seqtop replay run.seqtop                 look at it later
  seqtop show --json | jq .stats           print its state once, for a script
  seqtop export run.seqtop --perfetto -o run.json    open it at https://ui.perfetto.dev
  eval "$(seqtop completion bash)"         let the shell complete its commands and options
  seqtop keygen -o me                      make keys, to look at engines elsewhere
  seqtop serve -- replay run.seqtop        the app in a browser
  seqtop check run.seqtop                  find what cannot be right in it
"""

EXIT_STATUS = """\
exit status:
  0    done; also when a command that goes on until told to end was told to, by Ctrl-C or SIGTERM
  1    it could not be done, and standard error says why; or `check` has found something
  2    wrong usage
  3    `check` has found nothing, but could not check all: the recording is damaged or has no step
  130  ended by Ctrl-C before it was done
  141  whoever read the output has gone
"""


def parser(names: Iterable[str] = NAMES) -> argparse.ArgumentParser:
    """The whole command line, or what of it `names` need."""
    whole = CommandParser(
        prog="seqtop",
        description="See what an LLM inference engine is doing to every sequence, live.",
        epilog=f"{EXAMPLES}\n{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"seqtop {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        importlib.import_module(f"seqtop.cli.{name}").add(commands)
    return whole
