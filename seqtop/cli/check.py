"""`seqtop check`: hold an engine, or a recording, to what must be true."""

from __future__ import annotations

import argparse

from seqtop.argparse_ext import positive
from seqtop.cli.common import Commands, add_keys, add_source, add_timeout, fail, keys_of

INCOMPLETE = 3
"""The exit status if nothing was found where not all could be checked."""


def add(commands: Commands) -> None:
    check = commands.add_parser(
        "check",
        help="hold an engine, or a recording, to what must be true of any engine",
        description="Look for what cannot be right: blocks owned twice, leaks, tokens after the"
        " end, budgets exceeded. The exit status is 1 if something is found, and 3 if"
        " nothing is but a recording is damaged or has no step in it.",
        epilog="example: seqtop check run.seqtop --junit > report.xml",
    )
    add_source(check)
    form = check.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the report as JSON")
    form.add_argument("--junit", action="store_true", help="the report as JUnit XML")
    check.add_argument(
        "--duration",
        type=positive,
        metavar="SECONDS",
        help="end by itself after so long (default: at Ctrl-C, or when the engine stops)",
    )
    add_timeout(check)
    add_keys(check)
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from seqtop.checks.report import check_live, check_recording
    from seqtop.history import RecordingError
    from seqtop.signals import until_signalled

    try:
        if "://" in options.source:
            with until_signalled() as ended:
                report = check_live(
                    options.source,
                    ended=ended,
                    duration=options.duration,
                    timeout=options.timeout,
                    keys=keys_of(options),
                )
        else:
            report = check_recording(options.source)
    except RecordingError as error:
        return fail(str(error))
    if report.remark is not None:
        fail(report.remark)
    if options.json:
        print(report.as_json())
    else:
        print(report.as_junit() if options.junit else report.as_text())
    if report.findings:
        return 1
    return 0 if report.complete else INCOMPLETE
