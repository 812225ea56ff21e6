"""`seqtop record`: records a running engine to a file."""

from __future__ import annotations

import argparse

from seqtop.argparse_ext import positive
from seqtop.cli.messages import fail
from seqtop.cli.options import Commands, add_curve_keys, add_endpoint, add_timeout, curve_keys


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    record = commands.add_parser(
        "record",
        help="record a running engine",
        description="Record a running engine to a file that only you can read, until Ctrl-C. The"
        " file contains prompts and outputs unless --redact is given.",
        epilog="example: seqtop record tcp://127.0.0.1:5557 -o run.seqtop --duration 60",
    )
    add_endpoint(record)
    record.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write")
    record.add_argument(
        "--redact", action="store_true", help="leave out prompts, outputs and token ids"
    )
    record.add_argument("--force", action="store_true", help="replace the file if it exists")
    record.add_argument("--duration", type=positive, metavar="SECONDS", help="stop after this time")
    add_timeout(record)
    add_curve_keys(record)
    record.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.cli.record_engine import record
    from seqtop.history import RecordingError

    try:
        record(
            options.endpoint,
            options.output,
            overwrite=options.force,
            duration=options.duration,
            timeout=options.timeout,
            keys=curve_keys(options),
            redact=options.redact,
        )
    except RecordingError as error:
        exists = isinstance(error.__cause__, FileExistsError)
        return fail(f"{error}; --force replaces it" if exists else str(error))
    return 0
