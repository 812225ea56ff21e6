"""`seqtop demo`: starts the bundled engine and shows it."""

from __future__ import annotations

import argparse
import sys

from seqtop.cli.messages import fail
from seqtop.cli.options import Commands, add_view_options
from seqtop.cli.run_app import NO_TERMINAL, has_terminal, is_served, run_app
from seqtop.process.argparse_ext import not_negative

_TOUR = "N begins a guided tour of eight stops."


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    demo = commands.add_parser(
        "demo",
        help="start the bundled engine with a workload and show it",
        description="Start the bundled engine with a workload, in a process of its own, and show"
        " it. The engine ends when you quit. Where torch is not installed, a recorded run of the"
        " demo is played instead.",
        epilog="example: seqtop demo --pace 5",
    )
    demo.add_argument(
        "--model",
        help="a Llama, Mistral, Qwen2 or Qwen3 checkpoint: a Hugging Face directory, or"
        " organisation/name on the Hugging Face Hub (default: the bundled one)",
    )
    demo.add_argument(
        "--device",
        choices=("cpu", "cuda", "auto"),
        default="auto",
        help="cpu, cuda, or auto for cuda if there is one (default: auto)",
    )
    demo.add_argument(
        "--pace",
        type=not_negative,
        default=15.0,
        metavar="STEPS",
        help="the most engine steps per second, 0 for no limit (default: 15)",
    )
    demo.add_argument(
        "--load",
        metavar="FILE",
        help="run the requests of a workload in the Mooncake format, such as seqtop export"
        " --mooncake writes, once and at the times in it",
    )
    demo.add_argument(
        "--tour", action="store_true", help="begin with a guided tour of eight stops; N goes on"
    )
    add_view_options(demo)
    demo.set_defaults(run=run, validate=lambda _: 0)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.demo import DemoEngine, DemoSession, missing_package

    if not has_terminal():  # before an engine is started for nothing
        return fail(NO_TERMINAL)
    if (missing := missing_package()) is not None:
        return _play(options, missing)
    with (
        DemoEngine(
            model=options.model, device=options.device, pace=options.pace, load=options.load
        ) as engine,
        DemoSession(engine) as session,
    ):
        # Each demo begins as the tour in the README does. A page has no other place for the reason
        # why the engine did not start than the app.
        status = run_app(
            [session],
            options,
            [] if options.tour else [_TOUR],
            remembers=False,
            needs_engine=not is_served(),
        )
        failure = engine.failure()
    return fail(failure) if failure else status


def _play(options: argparse.Namespace, missing: str) -> int:
    """Plays the recorded run where a package of the engine is missing."""
    from seqtop.demo import RECORDED_RUN
    from seqtop.history import FileStore
    from seqtop.live.playback import Playback
    from seqtop.process.distribution import install_command

    advice = f"{missing} is not installed: {install_command('engine')}"
    if options.model or options.load:
        return fail(advice)
    with FileStore(RECORDED_RUN) as recording:
        playback = Playback(recording, RECORDED_RUN.name, loop=True)
        notice = f"This is a recorded run; {_TOUR} To run the engine, {install_command('engine')}"
        status = run_app([playback], options, [notice], remembers=False)
    print(f"seqtop: this was a recorded run, as {advice}", file=sys.stderr)
    return status
