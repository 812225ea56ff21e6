"""The `seqtop` command.

Exit status: 0 for success, 1 when the engine cannot be reached or understood or `check` has found
something, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from seqtop import __version__
from seqtop.commands import COMMANDS
from seqtop.commands.common import fail
from seqtop.link import UnreachableError
from seqtop.wire.endpoints import EndpointError
from seqtop.wire.keys import KeyFileError

_EXAMPLES = """\
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
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
        sys.stderr.close()
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="seqtop",
        description="See what an LLM inference engine is doing to every sequence, live.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"seqtop {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser
