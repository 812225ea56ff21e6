"""The `seqtop` command: does what its arguments say, and turns errors into exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from seqtop.argparse_ext import perhaps
from seqtop.cli import NAMES
from seqtop.cli.common import fail
from seqtop.cli.usage import parser
from seqtop.connection import UnreachableError
from seqtop.transport.curve_keys import KeyFileError
from seqtop.transport.endpoints import EndpointError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if mistyped := _mistyped_command(arguments):
        return fail(mistyped, status=2)
    wanted = arguments[:1] if arguments and arguments[0] in NAMES else NAMES
    options = parser(wanted).parse_args(arguments)
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


def _mistyped_command(arguments: Sequence[str]) -> str | None:
    """What to say if the first word is no command; options before it take no values."""
    word = next((each for each in arguments if not each.startswith("-")), None)
    if word is None or word in NAMES:
        return None
    return f"no command {word!r}{perhaps(word, NAMES)}; seqtop --help lists them all"
