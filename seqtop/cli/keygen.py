"""`seqtop keygen`: creates a CurveZMQ key pair for an engine or a viewer."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqtop.cli.messages import fail
from seqtop.cli.options import Commands


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    keygen = commands.add_parser(
        "keygen",
        help="create a key pair, for an engine or a viewer on another machine",
        description="Create a pair of CurveZMQ keys: NAME.key, for the other side, and"
        " NAME.key_secret, readable by you alone.",
        epilog="example: seqtop keygen -o engine, and on the other machine: seqtop keygen -o me",
    )
    keygen.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(),
        metavar="DIR|NAME",
        help="a directory, or a path without the suffix (default: ./seqtop)",
    )
    keygen.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.transport.curve_keys import KeyFileError, create_pair

    base = options.output / "seqtop" if options.output.is_dir() else options.output
    try:
        public, secret = create_pair(base)
    except KeyFileError as error:
        return fail(str(error))
    print(f"{public}: the public key, for the other side")
    print(f"{secret}: the secret key, for you alone")
    return 0
