"""`seqtop check`: checks the rules of `seqtop.checks`, and gates, on an engine or on recordings."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seqtop.cli.messages import INCOMPLETE, fail, print_document, warn
from seqtop.cli.options import (
    Commands,
    add_curve_keys,
    add_sources,
    add_thresholds,
    add_timeout,
    curve_keys,
    parse_condition,
    parse_duration,
    parse_objective,
    parse_share,
)
from seqtop.cli.progress import shown_progress
from seqtop.cli.recordings import (
    FolderError,
    open_recording,
    recordings_in,
    warn_of_prediction,
)

if TYPE_CHECKING:
    from seqtop.checks.gate import Gate
    from seqtop.checks.report import Report
    from seqtop.gates.baseline import Baseline


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    check = commands.add_parser(
        "check",
        help="check an engine or recordings for inconsistencies, and against your own limits",
        description="Check an engine or recordings for states that no correct engine reaches:"
        " blocks owned twice, leaked blocks, tokens after the end, exceeded budgets; and for"
        " requests that are stuck. With gates, also for what you do not want: a condition that"
        " holds, an objective that is missed, a run that is worse than an earlier one. The exit"
        " status is 1 if there are findings, and 3 if there are none but a recording is damaged,"
        " there was no step, or a gate is unknown.",
        epilog="example: seqtop check run.seqtop --slo ttft=500ms,p=99 --fail-if 'preemptions>0'",
    )
    add_sources(check)
    check.add_argument(
        "--protocol",
        action="store_true",
        help="for authors of publishers: decode every message, join again and again, and name each"
        " mistake by message and field; for an endpoint only",
    )
    form = check.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the report as JSON")
    form.add_argument("--junit", action="store_true", help="the report as JUnit XML")
    form.add_argument(
        "--github", action="store_true", help="the report as annotations of a GitHub workflow"
    )
    check.add_argument(
        "--duration",
        type=parse_duration,
        metavar="TIME",
        help="stop after this time, in seconds or such as 2m (default: at Ctrl-C, or when the"
        " engine stops)",
    )
    check.add_argument(
        "--fail-on",
        choices=("warning", "error"),
        default="warning",
        help="the least severity of a finding for exit status 1 (default: warning)",
    )
    gates = check.add_argument_group("gates", "what is a finding besides the rules")
    gates.add_argument(
        "--fail-if",
        type=parse_condition,
        action="append",
        default=[],
        metavar="CONDITION",
        help="a condition that holds at any moment, such as 'kv>95%%' or 'preemptions>0'; may be"
        " repeated",
    )
    gates.add_argument(
        "--slo",
        type=parse_objective,
        action="append",
        default=[],
        metavar="FIGURE=TIME,…,p=PERCENT",
        help="limits of ttft, itl, tpot, queue and e2e that a percentile of the requests exceeds,"
        " such as ttft=500ms,p=99; without p, that any request exceeds; may be repeated",
    )
    gates.add_argument(
        "--baseline",
        metavar="FILE",
        help="a recording with better latencies, throughput, preemptions or prefix-cache hits",
    )
    gates.add_argument(
        "--tolerance",
        type=parse_share,
        metavar="SHARE",
        help="how much worse than the baseline a figure may be (default: 10%%)",
    )
    add_thresholds(check)
    add_timeout(check)
    add_curve_keys(check)
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.gates.baseline import DEFAULT_TOLERANCE, Baseline
    from seqtop.history import RecordingError

    if options.tolerance is not None and options.baseline is None:
        return fail("--tolerance is that of a --baseline: give one", status=2)
    if options.protocol and options.baseline is not None:
        return fail("--baseline compares runs, and not with --protocol", status=2)
    if options.protocol and not (len(options.sources) == 1 and "://" in options.sources[0]):
        named = ", ".join(options.sources)
        return fail(f"--protocol checks a publisher at an endpoint, not {named}", status=2)
    baseline = None
    try:
        sources = _sources(options.sources)
        if options.baseline is not None:
            tolerance = DEFAULT_TOLERANCE if options.tolerance is None else options.tolerance
            with open_recording(options.baseline) as recording:
                baseline = Baseline(options.baseline, recording, tolerance)
        if "://" in sources[0]:
            reports = [_of_engine(options, sources[0], baseline)]
        else:
            reports = [*_of_recordings(options, sources, baseline)]
    except (RecordingError, FolderError, _SourceError) as error:
        return fail(str(error), status=2)
    for report in reports:
        warn_of_prediction(report.source, report.predicted_from)
        if report.problem is not None:
            warn(report.problem)
    _print(options, reports, is_single=options.sources == sources and len(sources) == 1)
    if any(
        report.num_errors or (report.num_warnings and options.fail_on == "warning")
        for report in reports
    ):
        return 1
    return 0 if all(report.complete for report in reports) else INCOMPLETE


class _SourceError(ValueError):
    """Sources that cannot be checked; `str()` is one sentence with the reason."""


def _sources(given: Sequence[str]) -> list[str]:
    """Returns the endpoint, or the recordings in place of their folders.

    Raises:
        _SourceError: A file is not there, or an endpoint is not alone.
        FolderError: No recording is in a folder.
    """
    found: list[str] = []
    for source in given:
        if "://" in source and len(given) > 1:
            raise _SourceError(f"an engine is checked alone: leave out all but {source}")
        path = Path(source)
        if len(given) > 1 and not path.exists():
            raise _SourceError(f"there is no file {source}")
        if "://" in source or not path.is_dir():
            found.append(source)
            continue
        found += map(str, recordings_in(source))
    return found


def _gates(options: argparse.Namespace) -> list[Gate]:
    """Returns the gates that are asked for: new ones for each source."""
    from seqtop.gates.condition_gate import ConditionGate
    from seqtop.gates.objective_gate import ObjectiveGate

    return [*map(ConditionGate, options.fail_if), *map(ObjectiveGate, options.slo)]


def _of_engine(options: argparse.Namespace, endpoint: str, baseline: Baseline | None) -> Report:
    """Checks an engine. For a baseline, it is recorded meanwhile, to a file that is removed."""
    from seqtop.checks.live_report import check_live, check_protocol
    from seqtop.checks.thresholds import from_values
    from seqtop.history.file_writer import FileWriter
    from seqtop.history.recorder import Recorder
    from seqtop.process.signals import until_signalled

    common = {
        "duration": options.duration,
        "timeout": options.timeout,
        "keys": curve_keys(options),
        "thresholds": from_values(options.threshold),
        "gates": _gates(options),
    }
    with until_signalled() as ended:
        if options.protocol:
            return check_protocol(endpoint, ended=ended, **common)
        if baseline is None:
            return check_live(endpoint, ended=ended, **common)
        with tempfile.TemporaryDirectory(prefix="seqtop-") as folder:
            path = Path(folder) / "run.seqtop"
            recorder = Recorder(FileWriter(path))
            try:
                report = check_live(endpoint, ended=ended, listener=recorder.record, **common)
            finally:
                recorder.close()
            if recorder.error is not None:
                report.add_problem(f"not compared with {baseline.path}: {recorder.error}")
            else:
                baseline.compare(report, path)
            return report


def _of_recordings(
    options: argparse.Namespace, paths: Sequence[str], baseline: Baseline | None
) -> list[Report]:
    """Checks recordings. One of several that cannot be read is incomplete.

    Raises:
        RecordingError: The only one cannot be read.
    """
    from seqtop.checks.report import Report, check_recording
    from seqtop.checks.thresholds import from_values
    from seqtop.history import RecordingError

    reports = []
    for path in paths:
        label = "checking" if len(paths) == 1 else f"checking {path}"
        try:
            with shown_progress(label) as progress:
                report = check_recording(
                    path,
                    thresholds=from_values(options.threshold),
                    progress=progress,
                    gates=_gates(options),
                )
        except RecordingError as error:
            if len(paths) == 1:
                raise
            report = Report(path, complete=False, problem=str(error))
        else:
            if baseline is not None:
                baseline.compare(report, path)
        reports.append(report)
    return reports


def _print(options: argparse.Namespace, reports: Sequence[Report], *, is_single: bool) -> None:
    """Prints the reports: as JSON, a list of them unless there is a single source."""
    from seqtop.checks.report import suites
    from seqtop.text.sanitize import indented_json

    if options.json:
        print_document(reports[0].as_json() if is_single else indented_json([*reports]))
    elif options.junit:
        print_document(reports[0].as_junit() if is_single else suites(reports))
    elif options.github:
        print_document("\n".join(report.as_github() for report in reports))
    else:
        print("\n".join(report.as_text() for report in reports))
