"""`seqtop attach`: look at a running engine."""

from __future__ import annotations

import argparse

from seqtop.commands.common import Commands, add_endpoint, add_keys, add_look, keys_of, run_app


def add(commands: Commands) -> None:
    attach = commands.add_parser(
        "attach",
        help="look at a running engine",
        description="Look at a running engine. The engine does not notice, and goes on after you"
        " leave.",
        epilog="example: seqtop attach tcp://127.0.0.1:5557",
    )
    add_endpoint(attach)
    add_keys(attach)
    add_look(attach)
    attach.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from seqtop.session import Session

    with Session(options.endpoint, keys=keys_of(options)) as session:
        return run_app(session, options)
