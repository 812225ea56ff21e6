"""The `seqtop` command: runs one of the commands and turns errors into exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from seqtop.cli import COMMANDS
from seqtop.cli.messages import fail
from seqtop.cli.parser import build_parser
from seqtop.process.argparse_ext import suggestion
from seqtop.process.distribution import other_seqtop
from seqtop.text.ascii_output import replace_unencodable
from seqtop.transport.connection import UnreachableError
from seqtop.transport.curve_keys import KeyFileError
from seqtop.transport.endpoints import EndpointError

_READER_GONE: Final = 141
"""The exit status of a program that SIGPIPE ends."""


def command() -> NoReturn:
    """Runs the script `seqtop`, and ends the process."""
    if message := other_seqtop():
        sys.exit(fail(message))
    run()


def run() -> NoReturn:
    """Runs the command line, and ends the process at once, as mypy does.

    Python would free each object of a state and its history first, which takes seconds.
    """
    status = main()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _READER_GONE
    os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    replace_unencodable(sys.stdout, sys.stderr)
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        from seqtop.cli import no_command

        return no_command.run()
    if arguments[0] not in COMMANDS and Path(arguments[0]).is_file():
        arguments = ["replay", *arguments]
    if message := _unknown_command(arguments):
        return fail(message, status=2)
    needed = arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS
    options = build_parser(needed).parse_args(arguments)
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
        # The reader has closed the pipe (`| head`). Python would flush standard output at exit,
        # fail again, print a traceback and exit with another status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE


def _unknown_command(arguments: Sequence[str]) -> str | None:
    """Returns an error message if the first word is not a command; options take no values."""
    word = next((argument for argument in arguments if not argument.startswith("-")), None)
    if word is None or word in COMMANDS:
        return None
    if "://" in word:
        return f"no command {word!r}; to show that engine: seqtop attach {word}"
    if "." in word or "/" in word:
        return f"no file {word!r}, and no command of that name; seqtop --help lists the commands"
    return f"no command {word!r}{suggestion(word, COMMANDS)}; seqtop --help lists them all"
