"""`seqtop show`: print a state once, or what happens to it, for scripts."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from seqtop.argparse_ext import not_negative
from seqtop.cli import kv_events
from seqtop.cli.common import (
    Commands,
    add_keys,
    add_source,
    add_timeout,
    fail,
    keys_of,
    nearest,
    opened,
    row_columns,
    row_filter,
    row_sort,
)

if TYPE_CHECKING:
    from seqtop.connection import Connection
    from seqtop.state import EngineState


def add(commands: Commands) -> None:
    show = commands.add_parser(
        "show",
        help="print the state of a running engine, or of a recording, once or as it changes",
        description="Print the state of a running engine, or that at the end of a recording, once,"
        " for scripts; or go on and print what changes.",
        epilog="example: seqtop show --follow --json | jq -c '[.step, .stats.num_waiting]'",
    )
    add_source(show)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as one JSON document")
    form.add_argument("--text", action="store_true", help="the table, as plain text (default)")
    show.add_argument("--at", type=int, metavar="STEP", help="of a recording: at this step's end")
    rows = show.add_argument_group("the table, and --follow")
    rows.add_argument(
        "--columns", type=row_columns, metavar="KEY,…", help="these columns, named as in a filter"
    )
    rows.add_argument(
        "--filter", type=row_filter, metavar="FILTER", help="these sequences: 'status:waiting'"
    )
    rows.add_argument(
        "--sort",
        type=row_sort,
        metavar="KEY",
        help="the table by this: figures the largest first, all else from the smallest or from A"
        " on; --sort=-KEY turns that round",
    )
    going = show.add_argument_group("going on")
    going.add_argument(
        "--follow",
        action="store_true",
        help="with --json: a line now and whenever something changes (docs/json.md)",
    )
    going.add_argument(
        "--every",
        type=not_negative,
        metavar="SECONDS",
        help="with --follow: at most one line in so long, 0 for one a change (default: 1)",
    )
    add_timeout(show)
    add_keys(show)
    kv_events.add(show, tokenizer=False)
    show.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    others = ("follow", "at", "columns", "filter", "sort", "server_key", "client_key")
    mistake = kv_events.mistake(options, others) or _mistake(options)
    if mistake is not None:
        return fail(mistake, status=2)
    if options.kv_events is not None:
        return kv_events.show(options)
    if options.follow:
        return _follow(options)
    if "://" in options.source:
        return _show_live(options)
    return _show_recording(options)


def _mistake(options: argparse.Namespace) -> str | None:
    """What does not go together."""
    is_live = "://" in options.source
    has_rows = options.columns or options.filter
    if options.follow and not options.json:
        return "--follow prints JSON lines: add --json"
    if options.every is not None and not options.follow:
        return "--every goes with --follow"
    if options.follow and not is_live:
        return "--follow needs a running engine; seqtop export has all of a recording"
    if options.at is not None and is_live:
        return "--at needs a recording: a running engine tells no past"
    if options.json and options.sort:
        return "--sort orders the table; JSON has sequences in order of arrival"
    if options.json and has_rows and not options.follow:
        return "--columns and --filter go with the table or --follow; for one document use jq"
    return None


def _show_recording(options: argparse.Namespace) -> int:
    from seqtop.connection import Connection, ConnectionState
    from seqtop.history import RecordingError

    try:
        with opened(options.source) as recording:
            if options.at is None:
                state = recording.at(recording.last)
            else:
                if (instead := nearest(recording, options.at)) is not None:
                    fail(f"step {options.at:,} is not on record; the nearest is {instead}")
                state = recording.seek(options.at)
            link = Connection(options.source, ConnectionState.REPLAY, recording.damage or "")
    except RecordingError as error:
        return fail(str(error))
    print(_shown(state, link, options))
    return 0


def _show_live(options: argparse.Namespace) -> int:
    from seqtop.session import Session

    with Session(options.source, keys=keys_of(options)) as session:
        session.await_engine(options.timeout)
        with session.lock:
            output = _shown(session.state, session.link, options)
    print(output)
    return 0


def _shown(state: EngineState, link: Connection, options: argparse.Namespace) -> str:
    from seqtop.export import json_document, text
    from seqtop.state.filter import NO_FILTER
    from seqtop.state.ordering import Sort

    if options.json:
        return json_document.encode(state, link).decode()
    return text.table(
        state,
        columns=options.columns,
        sort=options.sort or Sort(),
        filter_=options.filter or NO_FILTER,
    )


def _follow(options: argparse.Namespace) -> int:
    from seqtop.export.follow import JsonLinesWriter, follow
    from seqtop.history.memory_store import MemoryStore
    from seqtop.session import Session
    from seqtop.signals import until_signalled
    from seqtop.state.filter import NO_FILTER

    every = 1.0 if options.every is None else options.every
    follower = JsonLinesWriter(options.columns, options.filter or NO_FILTER)
    session = Session(options.source, history=MemoryStore(max_bytes=0), keys=keys_of(options))
    with session, until_signalled() as end:
        session.await_engine(options.timeout)
        follow(session, follower, sys.stdout.buffer, every=every, ended=end)
    return 0
