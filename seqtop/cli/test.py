"""`seqtop test`: tests the installed scheduler with recordings."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from seqtop.cli.messages import INCOMPLETE, fail, print_answer, print_document
from seqtop.cli.options import Commands
from seqtop.cli.questions import add_model, add_policy, add_python, progress
from seqtop.process.argparse_ext import positive

if TYPE_CHECKING:
    from seqtop.whatif.recorded_tests import RecordedTests

_TIMEOUT = 600.0
"""The default limit of the seconds that a recording takes."""


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    test = commands.add_parser(
        "test",
        help="test a scheduler with recordings",
        description="Test the scheduler that is installed with recordings of its engine: it gets"
        " the recorded requests and tokens again, without a model, and every decision of every step"
        " is compared with the recorded one. The first one that differs is explained, and the kinds"
        " of decisions that the recordings have are counted. The exit status is 0 if all are equal,"
        " 1 if one differs or the scheduler fails, 2 if a recording cannot be read, and 3 if one"
        " cannot be replayed.",
        epilog="example: seqtop test before.seqtop run.seqtop",
    )
    test.add_argument(
        "sources", nargs="+", metavar="FILE", help="a recording, or a folder of *.seqtop"
    )
    form = test.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the results as JSON")
    form.add_argument("--junit", action="store_true", help="the results as JUnit XML")
    add_policy(test)
    add_model(test)
    add_python(test)
    test.add_argument(
        "--timeout",
        type=positive,
        default=_TIMEOUT,
        metavar="SECONDS",
        help=f"the longest that a recording may take (default: {_TIMEOUT:g})",
    )
    test.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.history import RecordingError
    from seqtop.whatif import recorded_tests_report as report
    from seqtop.whatif.recorded_tests import SchedulerOptions, find_recordings, run_tests
    from seqtop.whatif.settings import SettingError

    try:
        paths = find_recordings(options.sources)
    except RecordingError as error:
        return fail(str(error), status=2)
    if options.policy is not None and not Path(options.policy).is_file():
        return fail(f"there is no policy {options.policy}", status=2)
    if shutil.which(options.python) is None:
        return fail(f"{options.python} cannot be started", status=2)
    scheduler = SchedulerOptions(
        python=options.python,
        policy=options.policy,
        model=options.model,
        timeout=options.timeout,
    )
    try:
        with progress() as show_progress:
            tests = run_tests(paths, scheduler, show_progress)
    except SettingError as error:
        return fail(str(error), status=2)
    if options.junit:
        print_document(report.as_junit(tests))
    else:
        print_answer(options, report.as_json, report.as_text, tests)
    return _status(tests)


def _status(tests: RecordedTests) -> int:
    """Returns the exit status: that of the worst outcome."""
    if tests.with_outcome("different", "failed"):
        return 1
    if tests.with_outcome("unreadable"):
        return 2
    return INCOMPLETE if tests.with_outcome("not replayed") else 0
