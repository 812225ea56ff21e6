"""`seqtop record`: write down what a running engine does."""

from __future__ import annotations

import argparse

from seqtop.argparse_ext import positive
from seqtop.cli.common import Commands, add_endpoint, add_keys, add_timeout, fail, keys_of


def add(commands: Commands) -> None:
    record = commands.add_parser(
        "record",
        help="write down what a running engine does",
        description="Record a running engine to a file that only you may read, until Ctrl-C. The"
        " file holds prompts and outputs, unless you ask for --redact.",
        epilog="example: seqtop record tcp://127.0.0.1:5557 -o run.seqtop --duration 60",
    )
    add_endpoint(record)
    record.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write")
    record.add_argument(
        "--redact", action="store_true", help="leave out prompts, outputs and token ids"
    )
    record.add_argument("--force", action="store_true", help="replace the file if it exists")
    record.add_argument(
        "--duration", type=positive, metavar="SECONDS", help="end by itself after so long"
    )
    add_timeout(record)
    add_keys(record)
    record.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from seqtop.cli.record_engine import record
    from seqtop.history import RecordingError

    try:
        record(
            options.endpoint,
            options.output,
            overwrite=options.force,
            duration=options.duration,
            timeout=options.timeout,
            keys=keys_of(options),
            redact=options.redact,
        )
    except RecordingError as error:
        exists = isinstance(error.__cause__, FileExistsError)
        return fail(f"{error}; --force replaces it" if exists else str(error))
    return 0
