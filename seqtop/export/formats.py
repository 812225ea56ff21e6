"""The formats of `seqtop export`: one declaration each.

A format is a function that writes a file, decorated with `export_format`. The options of the
command, their help and what they exclude follow from it. The function imports the format's module
when it is called: the command line starts without all of them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias

import msgspec

from seqtop.text import format as fmt

if TYPE_CHECKING:
    from seqtop.export.lifecycle import EngineRun, Observer
    from seqtop.export.measured import MeasuredRequests
    from seqtop.export.torch_trace import TorchTrace
    from seqtop.history.replay import ShowProgress
    from seqtop.history.timeline import Timeline


class ExportSource(msgspec.Struct, kw_only=True):
    """The timeline that is exported, and how."""

    timeline: Timeline
    progress: ShowProgress
    """Shows the part of the timeline that has been read."""
    redact: bool = False
    """True to leave texts and tokens out."""
    steps: bool = False
    """True for a row per step."""
    block_size: int | None = None
    """Tokens per block; `None` for the engine's own."""
    merged: Sequence[TorchTrace] = ()
    """Traces to put below on the same clock."""
    measured: MeasuredRequests | None = None
    """Measurements of others about the requests."""
    partitioned: bool = False
    """True for the files of many recordings in one directory."""

    def runs(self, observe: Observer | None = None) -> list[EngineRun]:
        """Reads the runs; without texts and tokens if they are to be left out.

        Args:
            observe: Is called with each event and the state after it.

        Raises:
            RecordingError: The timeline cannot be read.
        """
        from seqtop.export.lifecycle import read_runs, redacted

        runs = read_runs(self.timeline, observe, self.progress)
        return redacted(runs) if self.redact else runs


WriteFile: TypeAlias = Callable[[ExportSource, BinaryIO], str]
"""Writes an export to a file; returns what it contains, in words."""
WriteDirectory: TypeAlias = Callable[[ExportSource, Path, bool], str]
"""Writes the files of an export to a directory, and over those that exist if the last argument is
true; returns what they contain, in words."""


class ExportFormat(NamedTuple):
    """A format of `seqtop export`."""

    name: str
    """Its option is `--` and this name."""
    help: str
    write: WriteFile | None = None
    write_directory: WriteDirectory | None = None
    """Writes a format of several files, which has no `write`."""
    takes: frozenset[str] = frozenset()
    """The further options that are about it: `steps`, `merge`, `join`, `block_size`,
    `partitioned`."""
    is_binary: bool = False
    """True if it is no text for a terminal."""
    package: str = ""
    """A package that it needs and that is not always installed."""


FORMATS: dict[str, ExportFormat] = {}
"""The formats by name, in the order of the help."""


def _declare(declared: ExportFormat) -> None:
    if declared.name in FORMATS:
        raise ValueError(f"the export format {declared.name!r} is declared twice")
    FORMATS[declared.name] = declared


def export_format(
    name: str, text: str, *, takes: str = "", is_binary: bool = False
) -> Callable[[WriteFile], WriteFile]:
    """Declares the decorated function as a format of one file.

    Args:
        name: Its name.
        text: The help of its option.
        takes: The further options that are about it, separated by blanks.
        is_binary: True if it is no text for a terminal.

    Raises:
        ValueError: There is a format of this name already.
    """

    def decorate(write: WriteFile) -> WriteFile:
        options = frozenset(takes.split())
        _declare(ExportFormat(name, text, write, takes=options, is_binary=is_binary))
        return write

    return decorate


@export_format("perfetto", "a trace with one track per sequence", takes="merge", is_binary=True)
def _perfetto(source: ExportSource, file: BinaryIO) -> str:
    from seqtop.export import perfetto

    runs = source.runs()
    _write_all(file, perfetto.encode(runs, source.merged))
    return ", ".join(_counts(runs))


@export_format("csv", "CSV with one row per sequence", takes="steps join")
def _csv(source: ExportSource, file: BinaryIO) -> str:
    from seqtop.export import csv_rows

    runs = source.runs()
    sequences, steps = _counts(runs)
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    if source.steps:
        csv_rows.write_steps(runs, text)
    else:
        csv_rows.write_sequences(runs, text, source.measured)
    text.detach()
    return steps if source.steps else sequences


def _parquet(source: ExportSource, directory: Path, overwrite: bool) -> str:
    from seqtop.export import parquet

    num_rows = parquet.write(
        directory,
        source.timeline,
        redact=source.redact,
        overwrite=overwrite,
        partitioned=source.partitioned,
        measured=source.measured,
        progress=source.progress,
    )
    return ", ".join(fmt.plural(count, name.removesuffix("s")) for name, count in num_rows.items())


_declare(
    ExportFormat(
        "parquet",
        "Parquet files of requests, sequences, steps, tokens and events, in a directory",
        write_directory=_parquet,
        takes=frozenset({"join", "partitioned"}),
        package="pyarrow",
    )
)


@export_format(
    "mooncake",
    "the workload as JSON lines, as AIPerf, Dynamo and vLLM's benchmarks replay it",
    takes="join block_size",
)
def _mooncake(source: ExportSource, file: BinaryIO) -> str:
    from seqtop.export import mooncake

    # Only as long as tokens are known, it is known which prompts share a prefix.
    runs = msgspec.structs.replace(source, redact=False).runs()
    block_size = source.block_size or mooncake.block_size_of(runs)
    workload = mooncake.read(runs, block_size, redact=source.redact, measured=source.measured)
    _write_all(file, mooncake.encode(workload))
    left_out = workload.num_left_out
    phrase = (
        f"{fmt.plural(len(workload.rows), 'request')},"
        f" in blocks of {fmt.plural(block_size, 'token')}"
    )
    return phrase + (f"; {left_out:,} without a complete output left out" if left_out else "")


@export_format("vcr", "JSON lines for vllm-vcr, whose mock engine plays them")
def _vcr(source: ExportSource, file: BinaryIO) -> str:
    from seqtop.export import vcr

    times = vcr.TokenTimes()
    runs = msgspec.structs.replace(source, redact=False).runs(times)
    num_lines = _write_all(file, vcr.encode(runs, times, redact=source.redact))
    return fmt.plural(num_lines - 1, "request")  # the first line is none of a request


@export_format("otlp", "spans of the requests as OTLP JSON lines, for the OpenTelemetry Collector")
def _otlp(source: ExportSource, file: BinaryIO) -> str:
    from seqtop.export import otlp

    return fmt.plural(_write_all(file, otlp.encode(source.runs())), "request")


def _write_all(file: BinaryIO, parts: Iterable[bytes]) -> int:
    """Writes the parts of a file; returns their number."""
    number = 0
    for number, part in enumerate(parts, 1):  # noqa: B007 - it is returned
        file.write(part)
    return number


def _counts(runs: list[EngineRun]) -> tuple[str, str]:
    """Returns the numbers of sequences and of steps, in words."""
    num_sequences = sum(len(request.sequences) for run in runs for request in run.requests.values())
    num_steps = sum(len(run.steps) for run in runs)
    return fmt.plural(num_sequences, "sequence"), fmt.plural(num_steps, "step")
