"""`seqtop export`: writes a recording in formats of other programs."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from seqtop.cli.messages import fail, warn
from seqtop.cli.options import Commands, add_curve_keys, add_source, add_timeout, curve_keys
from seqtop.cli.recordings import open_recording
from seqtop.process import files
from seqtop.process.distribution import install_command
from seqtop.text import format as fmt

if TYPE_CHECKING:
    from seqtop.export.lifecycle import EngineRun
    from seqtop.export.measured import MeasuredRequests
    from seqtop.export.mooncake import MooncakeTrace
    from seqtop.export.torch_trace import TorchTrace
    from seqtop.history.timeline import Timeline


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
    form.add_argument("--perfetto", action="store_true", help="a trace with one track per sequence")
    form.add_argument("--csv", action="store_true", help="CSV with one row per sequence")
    form.add_argument(
        "--parquet",
        action="store_true",
        help="Parquet files of requests, sequences, steps, tokens and events, in a directory",
    )
    form.add_argument(
        "--mooncake",
        action="store_true",
        help="the workload as JSON lines, as AIPerf, Dynamo and vLLM's benchmarks replay it",
    )
    form.add_argument(
        "--vcr", action="store_true", help="JSON lines for vllm-vcr, whose mock engine plays them"
    )
    form.add_argument(
        "--otlp",
        action="store_true",
        help="spans of the requests as OTLP JSON lines, for the OpenTelemetry Collector",
    )
    export.add_argument("--steps", action="store_true", help="with --csv: one row per step")
    export.add_argument(
        "--merge",
        metavar="FILE",
        help="with --perfetto: a trace of torch.profiler from the same machine, as JSON, to put"
        " below on the same clock",
    )
    export.add_argument(
        "--join",
        action="append",
        default=[],
        metavar="FILE",
        help="with --csv, --parquet or --mooncake: what others measured about the requests, in"
        " AIPerf's profile_export.jsonl or Dynamo's dynamo.request.trace.v1",
    )
    export.add_argument(
        "--block-size",
        type=_block_size,
        metavar="TOKENS",
        help="with --mooncake: tokens per block (default: as the engine)",
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
    merged = measured = None
    if options.join:
        try:
            measured = MeasuredRequests(options.join)
        except MeasuredError as error:
            return fail(str(error), status=2)
        except OSError as error:
            return fail(f"{error.filename} cannot be read: {error.strerror}", status=2)
    if options.merge is not None:
        try:
            merged = TorchTrace(options.merge)
        except TorchTraceError as error:
            return fail(f"{options.merge} cannot be merged: {error}", status=2)
        except OSError as error:
            return fail(f"{options.merge} cannot be read: {error.strerror}", status=2)
    try:
        with _timeline(options) as timeline:
            if options.parquet:
                written = _write_parquet(timeline, options, measured)
            else:
                written = _write_file(timeline, options, merged, measured)
    except RecordingError as error:
        return fail(str(error))
    except BrokenPipeError:
        raise
    except FileExistsError as error:
        return fail(f"{error.filename} exists already; --force replaces it")
    except OSError as error:
        name = error.filename if options.parquet else options.output
        return fail(f"{name or 'standard output'} cannot be written: {error.strerror}")
    if options.output is not None:
        warn(f"wrote {options.output}: {written}")
    if measured is not None:
        warn(f"{fmt.plural(measured.num_joined, 'request')} joined")
    return 0


def _find_conflict(options: argparse.Namespace) -> str | None:
    """Returns a sentence about options that exclude each other, or `None`."""
    if options.steps and not options.csv:
        return "--steps needs --csv; a trace always contains the steps"
    if options.steps and "://" in options.source:
        return "a running engine does not publish past steps; use seqtop record first"
    if options.perfetto and options.output is None and sys.stdout.isatty():
        return "a trace is no text for a terminal: name a file with -o"
    if options.parquet and options.output is None:
        return "--parquet writes several files: name a directory with -o"
    if options.parquet and find_spec("pyarrow") is None:
        return f"--parquet needs pyarrow: {install_command('export')}"
    if options.merge is not None and not options.perfetto:
        return "--merge needs --perfetto"
    if options.join and (options.steps or not (options.csv or options.parquet or options.mooncake)):
        return "--join needs --csv, --parquet or --mooncake, which have rows of requests"
    if options.block_size is not None and not options.mooncake:
        return "--block-size needs --mooncake"
    if options.merge is not None and options.redact:
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


def _write_parquet(
    timeline: Timeline, options: argparse.Namespace, measured: MeasuredRequests | None
) -> str:
    """Writes the tables; returns what they contain."""
    from seqtop.export import parquet

    num_rows = parquet.write(
        Path(options.output),
        timeline,
        redact=options.redact,
        overwrite=options.force,
        measured=measured,
    )
    return ", ".join(fmt.plural(count, name.removesuffix("s")) for name, count in num_rows.items())


def _write_file(
    timeline: Timeline,
    options: argparse.Namespace,
    merged: TorchTrace | None,
    measured: MeasuredRequests | None,
) -> str:
    """Writes the file; returns what it contains."""
    from seqtop.export import csv_rows, mooncake, otlp, perfetto, vcr
    from seqtop.export.lifecycle import read_runs, redacted

    times = vcr.TokenTimes() if options.vcr else None
    runs = read_runs(timeline, times)
    shown = redacted(runs) if options.redact else runs
    contents = _contents(runs, options)
    lines: Iterable[bytes] = ()
    if options.perfetto:
        lines = perfetto.encode(shown, merged)
    elif options.mooncake:
        # Only as long as tokens are known, it is known which prompts share a prefix.
        block_size = options.block_size or mooncake.block_size_of(runs)
        workload = mooncake.read(runs, block_size, redact=options.redact, measured=measured)
        lines = mooncake.encode(workload)
        contents = _workload(workload, block_size)
    elif times is not None:
        lines = vcr.encode(runs, times, redact=options.redact)
    elif options.otlp:
        lines = otlp.encode(shown)
    num_lines = 0
    with _output(options) as file:
        for num_lines, line in enumerate(lines, 1):  # noqa: B007 - their number is shown
            file.write(line)
        if options.csv:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
            if options.steps:
                csv_rows.write_steps(shown, text)
            else:
                csv_rows.write_sequences(shown, text, measured)
            text.detach()
        file.flush()
    if options.otlp or options.vcr:  # whose first line is none of a request
        return fmt.plural(num_lines - options.vcr, "request")
    return contents


def _workload(workload: MooncakeTrace, block_size: int) -> str:
    """Returns a phrase on a workload."""
    left_out = workload.num_left_out
    tokens = fmt.plural(block_size, "token")
    phrase = f"{fmt.plural(len(workload.rows), 'request')}, in blocks of {tokens}"
    return phrase + (f"; {left_out:,} without a complete output left out" if left_out else "")


@contextmanager
def _output(options: argparse.Namespace) -> Iterator[BinaryIO]:
    if options.output is None:
        yield sys.stdout.buffer
        return
    with files.writing(options.output, overwrite=options.force) as file:
        yield file


def _contents(runs: list[EngineRun], options: argparse.Namespace) -> str:
    num_steps = sum(len(run.steps) for run in runs)
    num_sequences = sum(len(request.sequences) for run in runs for request in run.requests.values())
    steps, sequences = fmt.plural(num_steps, "step"), fmt.plural(num_sequences, "sequence")
    return steps if options.steps else sequences if options.csv else f"{sequences}, {steps}"
