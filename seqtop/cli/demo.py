"""`seqtop demo`: watch the bundled engine on this machine."""

from __future__ import annotations

import argparse
import sys

from seqtop.argparse_ext import not_negative
from seqtop.cli.common import Commands, add_look, fail, run_app


def add(commands: Commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="start the bundled engine with a workload and watch it",
        description="Start the bundled engine in a process of its own, give it something to do and"
        " watch it. Both end together.",
        epilog="example: seqtop demo --pace 5",
    )
    demo.add_argument(
        "--model",
        help="a Llama, Mistral, Qwen2 or Qwen3 checkpoint: a Hugging Face directory, or"
        " organisation/name on the Hugging Face Hub (default: the bundled one)",
    )
    demo.add_argument("--device", default="auto", help="cpu, cuda or auto (default: auto)")
    demo.add_argument(
        "--pace",
        type=not_negative,
        default=15.0,
        metavar="STEPS",
        help="at most so many engine steps per second, 0 for no limit (default: 15)",
    )
    add_look(demo)
    demo.set_defaults(run=run, refuse=lambda _: 0)


def run(options: argparse.Namespace) -> int:
    from seqtop.demo import DemoEngine, DemoError, DemoSession

    try:
        with (
            DemoEngine(model=options.model, device=options.device, pace=options.pace) as engine,
            DemoSession(engine) as session,
        ):
            print("seqtop: starting the bundled engine …", file=sys.stderr)
            engine.await_live(session)
            status = run_app([session], options)
            failure = engine.failure()
    except DemoError as error:
        return fail(str(error))
    return fail(failure) if failure else status
