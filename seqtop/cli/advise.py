"""`seqtop advise`: the settings with which a run would have met its objectives best."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from seqtop.cli.messages import fail, print_answer
from seqtop.cli.options import Commands, parse_slo
from seqtop.cli.questions import add_question, progress, question_of

if TYPE_CHECKING:
    from seqtop.whatif.advise import Advice

_DIFFERS = 1
"""The exit status if the recording does not come out again."""


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    advise = commands.add_parser(
        "advise",
        help="find the settings that meet the objectives",
        description="Search the settings with which the requests of a recorded run, or of a trace,"
        " meet their objectives best, and the load that they hold. The engine's own scheduler runs"
        " again with each of them, as for seqtop whatif. Settings are tried on the first part of"
        " the requests, and the best ones on all. Ctrl-C ends the search and keeps the best so far."
        " The exit status is 1 if the recording cannot be repeated, and 2 if it cannot be used.",
        epilog="example: seqtop advise run.seqtop --slo ttft=500ms,tpot=50ms",
    )
    add_question(advise)
    advise.add_argument(
        "--slo",
        type=parse_slo,
        required=True,
        metavar="FIGURE=TIME,…",
        help="objectives for ttft, itl, tpot, queue and e2e, such as ttft=500ms,tpot=50ms",
    )
    advise.add_argument(
        "--policies",
        metavar="DIR",
        help="scheduling policies of your own for the bundled engine, each a file of the folder,"
        " to be tried, too; the files are run",
    )
    advise.add_argument(
        "-o", "--output", metavar="FILE", help="write the run with the best settings to a file"
    )
    advise.add_argument("--force", action="store_true", help="replace the file if it exists")
    advise.add_argument("--json", action="store_true", help="the result as JSON")
    advise.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.whatif import advice_report
    from seqtop.whatif.advise import advise
    from seqtop.whatif.predict import WHATIF_ERRORS

    if options.output and os.path.lexists(options.output) and not options.force:
        return fail(f"{options.output} exists already; --force replaces it", status=2)
    shown: list[int] = []

    def show(advice: Advice) -> None:
        if not shown and sys.stderr.isatty():
            shown.append(1)
            lines = [
                "so far, on the first part of the requests:",
                *advice_report.trial_lines(advice),
                "",
            ]
            print("\r\x1b[K" + "\n".join(lines), file=sys.stderr)

    try:
        with progress() as show_progress:
            advice = advise(
                question_of(options), options.slo, show_progress, show, policies=options.policies
            )
    except WHATIF_ERRORS as error:
        return fail(str(error), status=2)
    print_answer(options, advice_report.as_json, advice_report.as_text, advice)
    return 0 if advice.basis.is_proven else _DIFFERS
