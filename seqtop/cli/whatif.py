"""`seqtop whatif`: predicts a recorded run with other settings."""

from __future__ import annotations

import argparse
import os

from seqtop.cli.messages import fail, print_document
from seqtop.cli.options import Commands
from seqtop.process.argparse_ext import positive

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
    whatif.add_argument("source", metavar="FILE", help="the recording")
    whatif.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting with its new value, or a change in percent such as +20%%; may be repeated."
        " Without one, only the proof is made",
    )
    whatif.add_argument(
        "--arrivals",
        choices=("time", "step"),
        default="time",
        help="requests arrive at their recorded times, or before the same steps (default: time)",
    )
    whatif.add_argument(
        "--scale-arrivals",
        type=positive,
        default=1.0,
        metavar="FACTOR",
        help="requests arrive this many times as fast",
    )
    whatif.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="REQUEST",
        help="the id of a request to leave out; may be repeated",
    )
    whatif.add_argument(
        "--anyway",
        action="store_true",
        help="predict even if the recording cannot be repeated",
    )
    whatif.add_argument("-o", "--output", metavar="FILE", help="write the prediction to a file")
    whatif.add_argument("--force", action="store_true", help="replace the file if it exists")
    whatif.add_argument("--model", metavar="DIR", help="the model, if it is not where it was")
    whatif.add_argument("--json", action="store_true", help="the result as JSON")
    whatif.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.history import RecordingError
    from seqtop.whatif import report
    from seqtop.whatif.driver import DriverError
    from seqtop.whatif.predict import Question, predict
    from seqtop.whatif.settings import SettingError
    from seqtop.whatif.step_time import StepTimeError
    from seqtop.whatif.workload import WorkloadError

    if options.output and os.path.lexists(options.output) and not options.force:
        return fail(f"{options.output} exists already; --force replaces it", status=2)
    question = Question(
        recording=options.source,
        changes=options.changes,
        arrivals=options.arrivals,
        scale_arrivals=options.scale_arrivals,
        without=options.without,
        anyway=options.anyway,
        output=options.output,
        overwrite=options.force,
        model=options.model,
    )
    try:
        prediction = predict(question)
    except (RecordingError, WorkloadError, DriverError, SettingError, StepTimeError) as error:
        return fail(str(error), status=2)
    if options.json:
        print_document(report.as_json(prediction))
    else:
        print(report.as_text(prediction))
    return 0 if prediction.is_proven else _DIFFERS
