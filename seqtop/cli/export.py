"""`seqtop export`: writes a recording in formats of other programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from seqtop.cli.messages import fail, warn
from seqtop.cli.options import Commands, add_curve_keys, add_source, add_timeout, curve_keys
from seqtop.cli.progress import shown_progress
from seqtop.cli.recordings import open_recording
from seqtop.export.formats import FORMATS, ExportFormat, ExportSource
from seqtop.process import files
from seqtop.process.distribution import install_command
from seqtop.text import format as fmt

if TYPE_CHECKING:
    from seqtop.export.measured import MeasuredRequests
    from seqtop.export.torch_trace import TorchTrace
    from seqtop.history.timeline import Timeline

_MOST_NAMED = 5
"""The most requests that are named which were measured and not recorded."""


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    export = commands.add_parser(
        "export",
        help="write a recording in formats of other programs",
        description="Write a recording as a trace for https://ui.perfetto.dev, or as tables. Of a"
        " running engine, export the requests in its snapshot, without steps.",
        epilog="example: seqtop export run.seqtop --perfetto -o run.pftrace",
    )
    add_source(export)
    form = export.add_mutually_exclusive_group(required=True)
    for export_format in FORMATS.values():
        form.add_argument(
            f"--{export_format.name}",
            dest="format",
            action="store_const",
            const=export_format,
            help=export_format.help,
        )
    export.add_argument("--steps", action="store_true", help="with --csv: one row per step")
    export.add_argument(
        "--merge",
        action="append",
        default=[],
        metavar="FILE",
        help="with --perfetto: a trace of torch.profiler from the same machine, as JSON, to put"
        " below on the same clock; may be repeated, as for one trace a rank",
    )
    export.add_argument(
        "--join",
        action="append",
        default=[],
        metavar="FILE",
        help="with --csv, --parquet or --mooncake: what others measured about the requests, in"
        " AIPerf's profile_export.jsonl or Dynamo's dynamo.request.trace.v1; may be repeated. The"
        " exit status is 1 if none of these requests is in the recording",
    )
    export.add_argument(
        "--block-size",
        type=_block_size,
        metavar="TOKENS",
        help="with --mooncake: tokens per block (default: as the engine)",
    )
    export.add_argument(
        "--partitioned",
        action="store_true",
        help="with --parquet: the directory has the tables of many recordings, by date and engine,"
        " to which this one is added, and views for DuckDB",
    )
    export.add_argument(
        "--redact",
        action="store_true",
        help="leave texts and tokens out, of which lengths and numbers remain",
    )
    export.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="the file to write (default: standard output), or the directory for --parquet",
    )
    export.add_argument("--force", action="store_true", help="replace files that exist")
    add_timeout(export)
    add_curve_keys(export)
    export.set_defaults(run=run)


def _block_size(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.export.measured import MeasuredError, MeasuredRequests
    from seqtop.export.torch_trace import TorchTrace, TorchTraceError
    from seqtop.history import RecordingError

    if (conflict := _find_conflict(options)) is not None:
        return fail(conflict, status=2)
    merged: list[TorchTrace] = []
    measured = None
    if options.join:
        try:
            measured = MeasuredRequests(options.join)
        except MeasuredError as error:
            return fail(str(error), status=2)
        except OSError as error:
            return fail(f"{error.filename} cannot be read: {error.strerror}", status=2)
    for path in options.merge:
        try:
            merged.append(TorchTrace(path))
        except TorchTraceError as error:
            return fail(f"{path} cannot be merged: {error}", status=2)
        except OSError as error:
            return fail(f"{path} cannot be read: {error.strerror}", status=2)
    try:
        with _timeline(options) as timeline, shown_progress("reading") as progress:
            source = ExportSource(
                timeline=timeline,
                progress=progress,
                redact=options.redact,
                steps=options.steps,
                block_size=options.block_size,
                merged=merged,
                measured=measured,
                partitioned=options.partitioned,
            )
            written = _write(source, options)
    except RecordingError as error:
        return fail(str(error), status=2)
    except BrokenPipeError:
        raise
    except FileExistsError as error:
        return fail(f"{error.filename} exists already; --force replaces it")
    except OSError as error:
        name = error.filename if options.format.write is None else options.output
        return fail(f"{name or 'standard output'} cannot be written: {error.strerror}")
    if options.output is not None:
        warn(f"wrote {options.output}: {written}")
    return 0 if measured is None else _report_joined(measured, options)


def _report_joined(measured: MeasuredRequests, options: argparse.Namespace) -> int:
    """Says what was joined and what was not; returns the exit status."""
    missing = measured.not_found()
    if not measured.num_joined:
        return fail(f"no request of {', '.join(options.join)} is in {options.source}")
    warn(f"{fmt.plural(measured.num_joined, 'request')} joined")
    if missing:
        named = ", ".join(missing[:_MOST_NAMED])
        more = "" if len(missing) <= _MOST_NAMED else " …"
        warn(
            f"{fmt.plural(len(missing), 'measured request')} not in {options.source}: {named}{more}"
        )
    return 0


def _find_conflict(options: argparse.Namespace) -> str | None:
    """Returns a sentence about options that exclude each other, or `None`."""
    chosen: ExportFormat = options.format
    for name in ("steps", "merge", "join", "block_size", "partitioned"):
        given = getattr(options, name) not in (None, False, [])
        if given and name not in chosen.takes:
            able = [f"--{other.name}" for other in FORMATS.values() if name in other.takes]
            return f"--{name.replace('_', '-')} needs {' or '.join(able)}"
    if options.steps and options.join:
        return "--join needs rows of requests: it adds nothing to --steps"
    if options.steps and "://" in options.source:
        return "a running engine does not publish past steps; use seqtop record first"
    if chosen.write is None and options.output is None:
        return f"--{chosen.name} writes several files: name a directory with -o"
    if chosen.is_binary and options.output is None and sys.stdout.isatty():
        return f"--{chosen.name} is no text for a terminal: name a file with -o"
    if chosen.package and find_spec(chosen.package) is None:
        return f"--{chosen.name} needs {chosen.package}: {install_command('export')}"
    if options.merge and options.redact:
        return "--redact cannot know which names in a trace of --merge are texts"
    return None


@contextmanager
def _timeline(options: argparse.Namespace) -> Iterator[Timeline]:
    """Opens the source: a recording, or the history of a live session."""
    from seqtop.live.session import Session

    if "://" in options.source:
        with Session(options.source, keys=curve_keys(options)) as session:
            session.await_engine(options.timeout)
            yield session.history
    else:
        with open_recording(options.source) as recording:
            yield recording


def _write(source: ExportSource, options: argparse.Namespace) -> str:
    """Writes the export; returns what it contains, in words."""
    chosen: ExportFormat = options.format
    if chosen.write_directory is not None:
        return chosen.write_directory(source, Path(options.output), options.force)
    assert chosen.write is not None, "a format writes a file or a directory"
    with _output(options) as file:
        contents = chosen.write(source, file)
        file.flush()
    return contents


@contextmanager
def _output(options: argparse.Namespace) -> Iterator[BinaryIO]:
    if options.output is None:
        yield sys.stdout.buffer
        return
    with files.writing(options.output, overwrite=options.force) as file:
        yield file
