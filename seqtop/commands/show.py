"""`seqtop show`: print a state once, for scripts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from seqtop.commands.common import Commands, add_keys, add_source, add_timeout, fail, keys_of

if TYPE_CHECKING:
    from seqtop.state import EngineState


def add(commands: Commands) -> None:
    show = commands.add_parser(
        "show",
        help="print the state of a running engine, or the end of a recording, once",
        description="Print the state of a running engine, or that at the end of a recording, once,"
        " for scripts.",
        epilog="example: seqtop show --json | jq '.requests[].request_id'",
    )
    add_source(show)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as one JSON document")
    form.add_argument("--text", action="store_true", help="the table, as plain text (default)")
    add_timeout(show)
    add_keys(show)
    show.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from seqtop.export import document, text
    from seqtop.link import Link, LinkState
    from seqtop.recording import RecordingError, final_state
    from seqtop.session import Session

    def shown(state: EngineState, link: Link) -> str:
        return document.encode(state, link).decode() if options.json else text.table(state)

    if "://" not in options.source:
        try:
            print(shown(final_state(options.source), Link(options.source, LinkState.REPLAY)))
        except RecordingError as error:
            return fail(str(error))
        return 0
    with Session(options.source, keys=keys_of(options)) as session:
        session.await_engine(options.timeout)
        with session.lock:
            output = shown(session.state, session.link)
    print(output)
    return 0
