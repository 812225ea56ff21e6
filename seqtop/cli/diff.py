"""`seqtop diff`: compares two recordings."""

from __future__ import annotations

import argparse

from seqtop.cli.messages import fail, print_answer
from seqtop.cli.options import Commands
from seqtop.cli.progress import shown_progress


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    diff = commands.add_parser(
        "diff",
        help="compare two recordings",
        description="Compare two recorded runs: their settings, the decisions of the scheduler"
        " that differ, the first of each kind with its cause, and what followed in latency and"
        " throughput. The exit status is 0 if the runs are equal, 1 if they differ, and 2 if a"
        " recording cannot be read.",
        epilog="example: seqtop diff before.seqtop after.seqtop",
    )
    diff.add_argument("a", metavar="FILE", help="the first recording")
    diff.add_argument("b", metavar="FILE", help="the second recording")
    diff.add_argument(
        "--ignore",
        action="append",
        default=[],
        choices=("arrivals", "tokens"),
        help="leave out a kind of differences: between which steps requests arrived, or which"
        " tokens were sampled; may be given twice",
    )
    diff.add_argument("--json", action="store_true", help="the result as JSON")
    diff.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.cli.recordings import open_recording
    from seqtop.diff import report
    from seqtop.diff.comparison import compare
    from seqtop.diff.run import RunDecisions
    from seqtop.history import RecordingError

    runs: list[RunDecisions] = []
    for path in (options.a, options.b):
        try:
            with open_recording(path) as recording, shown_progress(f"reading {path}") as progress:
                runs.append(RunDecisions(recording, progress))
        except RecordingError as error:
            return fail(str(error), status=2)
    comparison = compare(runs[0], runs[1], options.ignore)
    print_answer(options, report.as_json, report.as_text, comparison, options.a, options.b)
    return int(comparison.is_different)
