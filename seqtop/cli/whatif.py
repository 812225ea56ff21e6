"""`seqtop whatif`: predicts a recorded run with other settings."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from seqtop.cli.messages import fail, print_answer
from seqtop.cli.options import Commands, parse_slo
from seqtop.cli.questions import add_question, progress, question_of

if TYPE_CHECKING:
    from seqtop.whatif.driver import ShowProgress
    from seqtop.whatif.predict import Question
    from seqtop.whatif.report import Answer

_DIFFERS = 1
"""The exit status if the recording does not come out again."""


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    whatif = commands.add_parser(
        "whatif",
        help="predict a recorded run with other settings",
        description="Predict what a recorded run would have been with other settings. The engine's"
        " own scheduler runs again, with the recorded requests and tokens, and without a model."
        " First it has to repeat the recording, decision by decision; then decisions with other"
        " settings are exact, as far as the lengths of outputs stay the same, and times are those"
        " of a model fitted to the recording. The exit status is 1 if the recording cannot be"
        " repeated, and 2 if it cannot be used.",
        epilog="example: seqtop whatif run.seqtop --set num_gpu_blocks=+20% -o more.seqtop",
    )
    add_question(whatif)
    several = whatif.add_argument_group("several predictions")
    forms = several.add_mutually_exclusive_group()
    forms.add_argument(
        "--sweep",
        action="append",
        metavar="NAME=FIRST..LAST:COUNT",
        help="predict with several values of a setting, such as num_gpu_blocks=500..2000:8 or"
        " max_num_seqs=8,16,32; if repeated, with all combinations",
    )
    forms.add_argument(
        "--capacity",
        action="store_true",
        help="find the highest load with which 99%% of the requests meet the objectives of --slo",
    )
    several.add_argument(
        "--slo",
        type=parse_slo,
        metavar="FIGURE=TIME,…",
        help="with --sweep or --capacity: objectives for ttft, itl, tpot, queue and e2e, such as"
        " ttft=1,itl=50ms",
    )
    whatif.add_argument("-o", "--output", metavar="FILE", help="write the prediction to a file")
    whatif.add_argument("--force", action="store_true", help="replace the file if it exists")
    whatif.add_argument(
        "--bisect",
        metavar="FIRST..LAST",
        help="find the first version of the engine, such as in 0.28.0..0.33.0, that decides"
        " otherwise than the first one of the range. --python then has {version} in the place of"
        " the version, and the versions are those that are there. The exit status is 1 if one"
        " decides otherwise",
    )
    whatif.add_argument("--json", action="store_true", help="the result as JSON")
    whatif.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.whatif import report
    from seqtop.whatif.predict import WHATIF_ERRORS

    if (conflict := _find_conflict(options)) is not None:
        return fail(conflict, status=2)
    try:
        if options.bisect:
            return _bisect(options)
        with progress() as show_progress:
            answer = _answer(question_of(options), options, show_progress)
    except WHATIF_ERRORS as error:
        return fail(str(error), status=2)
    print_answer(options, report.as_json, report.as_text, answer)
    return 0 if answer.basis.is_proven else _DIFFERS


def _find_conflict(options: argparse.Namespace) -> str | None:
    """Returns a sentence about options that exclude each other, or `None`."""
    if options.output and os.path.lexists(options.output) and not options.force:
        return f"{options.output} exists already; --force replaces it"
    if options.output and (options.sweep or options.capacity):
        return "-o writes one prediction; --sweep and --capacity make several"
    if options.capacity and not options.slo:
        return "--capacity needs --slo: the objectives that the load has to keep"
    if options.bisect and (options.changes or options.sweep or options.capacity or options.output):
        return "--bisect replays with the recorded settings; it predicts nothing"
    if options.slo and not (options.sweep or options.capacity):
        return "--slo is for --sweep and --capacity"
    return None


def _bisect(options: argparse.Namespace) -> int:
    from seqtop.whatif.bisect import as_json, as_text, bisect

    bisection = bisect(options.source, options.python, options.bisect)
    print_answer(options, as_json, as_text, bisection)
    return _DIFFERS if bisection.changed is not None else 0


def _answer(question: Question, options: argparse.Namespace, progress: ShowProgress) -> Answer:
    from seqtop.state.slo import Slo
    from seqtop.whatif.predict import predict
    from seqtop.whatif.sweep import find_capacity, sweep

    if options.capacity:
        return find_capacity(question, options.slo, progress)
    if options.sweep:
        return sweep(question, options.sweep, options.slo or Slo(), progress)
    return predict(question, progress)
