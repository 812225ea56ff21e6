"""The parser of the whole command line, with examples and exit statuses."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable

from seqtop import __version__
from seqtop.cli import COMMANDS
from seqtop.process.argparse_ext import CommandParser

EXAMPLES = """\
examples:
  seqtop demo                              start the bundled engine and show it
  engine-stub serve --control              start the bundled engine for viewers
  seqtop                                   show the engine of this machine, if there is one
  seqtop attach localhost:5557             show a running engine
  seqtop attach --kv-events tcp://127.0.0.1:5557    show the prefix cache of vLLM, SGLang and others
  seqtop record -o run.seqtop              record an engine until Ctrl-C
  seqtop run.seqtop                        show the recording, as seqtop replay does
  seqtop show --json | jq .stats           print the engine's state once, for a script
  seqtop export run.seqtop --perfetto -o run.pftrace  write a trace for https://ui.perfetto.dev
  seqtop report run.seqtop -o report.html  write a report as an HTML page
  eval "$(seqtop completion bash)"         complete commands and options in bash
  seqtop keygen -o me                      create keys to attach to engines on other machines
  seqtop serve -- replay run.seqtop        show the app in a browser
  seqtop check run.seqtop                  check a recording for inconsistencies
  seqtop test recordings                   test the scheduler with the recordings of a folder
"""

EXIT_STATUS = """\
exit status:
  0    success; also if Ctrl-C or SIGTERM ended a command that runs until then
  1    failure, with the reason on standard error; or `check` has findings, or `test` differences
  2    wrong usage, or a file that cannot be read as what is wanted
  3    `check` has no findings, but a recording is damaged or has no steps, or a gate is unknown;
       or `test` has no differences, but a recording cannot be replayed
  130  interrupted by Ctrl-C
  141  the reader of the output closed the pipe
"""


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Returns a parser with the commands `names`."""
    parser = CommandParser(
        prog="seqtop",
        description="See what an LLM inference engine is doing to every sequence, live.",
        epilog=f"{EXAMPLES}\n{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"seqtop {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        importlib.import_module(f"seqtop.cli.{name}").add_command(commands)
    return parser
