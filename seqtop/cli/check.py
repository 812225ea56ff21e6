"""`seqtop check`: checks the rules of `seqtop.checks` on an engine or a recording."""

from __future__ import annotations

import argparse

from seqtop.cli.messages import INCOMPLETE, fail, print_document, warn
from seqtop.cli.options import (
    Commands,
    add_curve_keys,
    add_source,
    add_thresholds,
    add_timeout,
    curve_keys,
)
from seqtop.cli.progress import shown_progress
from seqtop.cli.recordings import warn_of_prediction
from seqtop.process.argparse_ext import positive


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    check = commands.add_parser(
        "check",
        help="check an engine or a recording for inconsistencies",
        description="Check an engine or a recording for states that no correct engine reaches:"
        " blocks owned twice, leaked blocks, tokens after the end, exceeded budgets; and for"
        " requests that are stuck. The exit status is 1 if there are findings, and 3 if there are"
        " none but the recording is damaged, or there was no step.",
        epilog="example: seqtop check run.seqtop --junit > report.xml",
    )
    add_source(check)
    check.add_argument(
        "--protocol",
        action="store_true",
        help="for authors of publishers: decode every message, join again and again, and name each"
        " mistake by message and field; for an endpoint only",
    )
    form = check.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the report as JSON")
    form.add_argument("--junit", action="store_true", help="the report as JUnit XML")
    check.add_argument(
        "--duration",
        type=positive,
        metavar="SECONDS",
        help="stop after this time (default: at Ctrl-C, or when the engine stops)",
    )
    check.add_argument(
        "--fail-on",
        choices=("warning", "error"),
        default="warning",
        help="the least severity of a finding for exit status 1 (default: warning)",
    )
    add_thresholds(check)
    add_timeout(check)
    add_curve_keys(check)
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.checks.report import check_live, check_protocol, check_recording
    from seqtop.checks.thresholds import from_values
    from seqtop.history import RecordingError
    from seqtop.process.signals import until_signalled

    thresholds = from_values(options.threshold)
    is_live = "://" in options.source
    if options.protocol and not is_live:
        return fail(f"--protocol checks a publisher at an endpoint, not {options.source}", status=2)
    try:
        if is_live:
            with until_signalled() as ended:
                report = (check_protocol if options.protocol else check_live)(
                    options.source,
                    ended=ended,
                    duration=options.duration,
                    timeout=options.timeout,
                    keys=curve_keys(options),
                    thresholds=thresholds,
                )
        else:
            with shown_progress("checking") as progress:
                report = check_recording(options.source, thresholds=thresholds, progress=progress)
    except RecordingError as error:
        return fail(str(error), status=2)
    warn_of_prediction(options.source, report.predicted_from)
    if report.problem is not None:
        warn(report.problem)
    if options.json:
        print_document(report.as_json())
    elif options.junit:
        print_document(report.as_junit())
    else:
        print(report.as_text())
    if report.num_errors or (report.num_warnings and options.fail_on == "warning"):
        return 1
    return 0 if report.complete else INCOMPLETE
