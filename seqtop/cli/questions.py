"""The options of commands that ask what a run would have been with other settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from seqtop.cli.progress import shown_progress
from seqtop.process.argparse_ext import positive
from seqtop.whatif.trace_options import add_trace_options

if TYPE_CHECKING:
    from seqtop.whatif.driver import ShowProgress
    from seqtop.whatif.predict import Question


def add_question(command: argparse.ArgumentParser) -> None:
    """Adds the source and the options of a question."""
    command.add_argument("source", metavar="FILE", help="the recording, or a trace")
    command.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting with its new value, or a change in percent such as +20%%; may be repeated."
        " Without one, only the proof is made",
    )
    command.add_argument(
        "--arrivals",
        choices=("time", "step"),
        default="time",
        help="requests arrive at their recorded times, or before the same steps (default: time)",
    )
    command.add_argument(
        "--closed-loop",
        dest="arrivals",
        action="store_const",
        const="closed-loop",
        help="requests arrive as long after the end of an earlier one as they did: clients that"
        " wait for an answer before they send the next request",
    )
    command.add_argument(
        "--scale-arrivals",
        type=positive,
        default=1.0,
        metavar="FACTOR",
        help="requests arrive this many times as fast",
    )
    command.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="REQUEST",
        help="the id of a request to leave out; may be repeated",
    )
    add_trace_options(command, has_scale=False)
    command.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="the tokenizer.json, or its folder, that measures the texts of a trace",
    )
    times = command.add_argument_group("times")
    times.add_argument(
        "--step-time",
        metavar="NAME=TIME,…",
        default="",
        help="times that are not to be fitted to the recording, such as prefill=0.1ms,decode=20us:"
        " of each step, prefill token, decode token, gap between steps, arrival, or wake-up",
    )
    times.add_argument(
        "--calibrate",
        dest="calibrations",
        action="append",
        default=[],
        metavar="FILE",
        help="another recording of the same model and device, to whose steps the times are fitted"
        " too; may be repeated",
    )
    command.add_argument(
        "--anyway",
        action="store_true",
        help="predict even if the recording cannot be repeated",
    )
    add_policy(command)
    add_model(command)
    add_python(command)


def add_policy(command: argparse.ArgumentParser) -> None:
    """Adds the option for a scheduling policy of one's own."""
    command.add_argument(
        "--policy",
        metavar="FILE.py",
        help="a scheduling policy of your own for the bundled engine; the file is run",
    )


def add_model(command: argparse.ArgumentParser) -> None:
    """Adds the option for the place of the model."""
    command.add_argument("--model", metavar="DIR", help="the model, if it is not where it was")


def add_python(command: argparse.ArgumentParser) -> None:
    """Adds the option for the Python that has the engine."""
    command.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="the Python that runs the engine's scheduler, which has the engine and seqtop; it may"
        " have another version of the engine",
    )


def question_of(options: argparse.Namespace) -> Question:
    """Returns the question that the options ask.

    Raises:
        StepTimeError: `--step-time` is invalid.
    """
    from seqtop.history import step_time
    from seqtop.whatif.predict import Question

    return Question(
        source=options.source,
        changes=options.changes,
        arrivals=options.arrivals,
        scale_arrivals=options.scale_arrivals,
        without=options.without,
        step_time=step_time.parse(options.step_time),
        calibrations=options.calibrations,
        anyway=options.anyway,
        policy=options.policy,
        output=options.output,
        overwrite=options.force,
        model=options.model,
        limit=options.limit,
        request_rate=options.request_rate,
        scale_lengths=options.scale_lengths,
        tokenizer=options.tokenizer,
        python=options.python,
    )


@contextmanager
def progress() -> Iterator[ShowProgress]:
    """Yields a function that shows the number of complete replays, if a person can see it."""
    with shown_progress("replaying") as show:
        yield lambda num_complete, total: show(num_complete / max(total, 1))
