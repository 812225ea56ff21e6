"""`seqtop keygen`: make a pair of keys, for an engine or for a viewer."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqtop.cli.common import Commands, fail


def add(commands: Commands) -> None:
    keygen = commands.add_parser(
        "keygen",
        help="make a pair of keys, for an engine or a viewer on another machine",
        description="Make a pair of CurveZMQ keys: NAME.key, to be handed to the other side, and"
        " NAME.key_secret, which only you may read.",
        epilog="example: seqtop keygen -o engine, and on the other machine: seqtop keygen -o me",
    )
    keygen.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(),
        metavar="DIR|NAME",
        help="where to put them: a directory, or a path without its ending (default: ./seqtop)",
    )
    keygen.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from seqtop.transport.curve_keys import KeyFileError, create_pair

    base = options.output / "seqtop" if options.output.is_dir() else options.output
    try:
        public, secret = create_pair(base)
    except KeyFileError as error:
        return fail(str(error))
    print(f"{public}: to be handed to the other side")
    print(f"{secret}: to be kept secret")
    return 0
