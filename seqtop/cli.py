"""The `seqtop` command: its options, its exit statuses and what it says on errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from seqtop import __version__
from seqtop.commands import COMMANDS
from seqtop.commands.common import fail
from seqtop.commands.parsing import CommandParser, perhaps
from seqtop.link import UnreachableError
from seqtop.wire.endpoints import EndpointError
from seqtop.wire.keys import KeyFileError

EXAMPLES = """\
examples:
  seqtop demo                              watch the bundled engine on this machine
  engine-stub serve --control              run the bundled engine for others to look at
  seqtop attach tcp://127.0.0.1:5557       look at a running engine
  seqtop record -o run.seqtop              write down what it does, until Ctrl-C
  seqtop replay run.seqtop                 look at it later
  seqtop show --json | jq .stats           print its state once, for a script
  seqtop export run.seqtop --perfetto -o run.json    open it at https://ui.perfetto.dev
  seqtop keygen -o me                      make keys, to look at engines elsewhere
  seqtop check run.seqtop                  find what cannot be right in it
"""

EXIT_STATUS = """\
exit status:
  0    done; also when a command that goes on until told to end was told to, by Ctrl-C or SIGTERM
  1    it could not be done, and standard error says why; or `check` has found something
  2    wrong usage
  130  ended by Ctrl-C before it was done
  141  whoever read the output has gone
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if mistyped := _mistyped_command(arguments):
        return fail(mistyped, status=2)
    options = parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (EndpointError, KeyFileError) as error:
        return fail(str(error), status=2)
    except UnreachableError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing is left to say, or to say it to.
        # Python would still try, and exit with another status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = CommandParser(
        prog="seqtop",
        description="See what an LLM inference engine is doing to every sequence, live.",
        epilog=f"{EXAMPLES}\n{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"seqtop {__version__}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return whole


def _mistyped_command(arguments: Sequence[str]) -> str | None:
    """What to say if the first word is no command; options before it take no values."""
    word = next((each for each in arguments if not each.startswith("-")), None)
    names = [command.__name__.rpartition(".")[2] for command in COMMANDS]
    if word is None or word in names:
        return None
    return f"no command {word!r}{perhaps(word, names)}; seqtop --help lists them all"
