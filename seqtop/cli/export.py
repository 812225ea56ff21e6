"""`seqtop export`: what is on record, for other programs."""

from __future__ import annotations

import argparse
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from seqtop.cli.common import Commands, add_keys, add_source, add_timeout, fail, keys_of, opened

if TYPE_CHECKING:
    from seqtop.export.lifecycle import Run


def add(commands: Commands) -> None:
    export = commands.add_parser(
        "export",
        help="turn a recording into a Perfetto trace or CSV",
        description="Turn a recording into a trace for https://ui.perfetto.dev, or into CSV. Of a"
        " running engine there is what it tells a viewer who has just come: every request it"
        " knows, but no step before now.",
        epilog="example: seqtop export run.seqtop --perfetto -o run.json",
    )
    add_source(export)
    form = export.add_mutually_exclusive_group(required=True)
    form.add_argument("--perfetto", action="store_true", help="a trace, one track a sequence")
    form.add_argument("--csv", action="store_true", help="CSV, one row a sequence")
    export.add_argument("--steps", action="store_true", help="with --csv: one row a step")
    export.add_argument("-o", "--output", metavar="FILE", help="where to (default: stdout)")
    export.add_argument("--force", action="store_true", help="replace the file if it exists")
    add_timeout(export)
    add_keys(export)
    export.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from seqtop.history import RecordingError

    if options.steps and not options.csv:
        return fail("--steps goes with --csv; a trace has the steps anyway", status=2)
    if options.steps and "://" in options.source:
        return fail("a running engine tells no past steps; use seqtop record first", status=2)
    try:
        runs = _gathered(options)
        with _output(options) as file:
            _write(runs, options, file)
            file.flush()
    except RecordingError as error:
        return fail(str(error))
    except BrokenPipeError:
        raise
    except FileExistsError:
        return fail(f"{options.output} exists already; --force replaces it")
    except OSError as error:
        return fail(f"{options.output or 'standard output'} cannot be written: {error.strerror}")
    return 0


def _gathered(options: argparse.Namespace) -> list[Run]:
    from seqtop.export.lifecycle import gather
    from seqtop.session import Session

    if "://" in options.source:
        with Session(options.source, keys=keys_of(options)) as session:
            session.await_engine(options.timeout)
            return gather(session.history)
    with opened(options.source) as recording:
        return gather(recording)


@contextmanager
def _output(options: argparse.Namespace) -> Iterator[BinaryIO]:
    if options.output is None:
        yield sys.stdout.buffer
        return
    # It may hold prompts and outputs: for its owner alone, like a recording.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    flags |= os.O_TRUNC if options.force else os.O_EXCL
    with os.fdopen(os.open(options.output, flags, 0o600), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), 0o600)
        yield file


def _write(runs: list[Run], options: argparse.Namespace, file: BinaryIO) -> None:
    from seqtop.export import csv_rows, perfetto

    if options.perfetto:
        file.writelines(perfetto.encode(runs))
        return
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    (csv_rows.write_steps if options.steps else csv_rows.write_sequences)(runs, text)
    text.detach()
