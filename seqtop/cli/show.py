"""`seqtop show`: prints an engine's state, once or whenever it changes, for scripts."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from seqtop.cli import kv_events
from seqtop.cli.http_servers import stream_of
from seqtop.cli.messages import INCOMPLETE, fail, print_document, warn
from seqtop.cli.options import (
    Commands,
    add_curve_keys,
    add_source,
    add_timeout,
    curve_keys,
    parse_columns,
    parse_filter,
    parse_group_key,
    parse_sort,
)
from seqtop.cli.recordings import nearest_step, open_recording
from seqtop.process.argparse_ext import not_negative

if TYPE_CHECKING:
    from seqtop.history import FileStore
    from seqtop.state import EngineState
    from seqtop.transport.connection import Connection


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    show = commands.add_parser(
        "show",
        help="print the state of an engine or a recording",
        description="Print the state of a running engine, or at the end of a recording, once, for"
        " scripts; with --follow, print what changes.",
        epilog="example: seqtop show --follow --json | jq -c '[.step, .stats.num_waiting]'",
    )
    add_source(show)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the whole state as one JSON document")
    form.add_argument("--csv", action="store_true", help="with --by: the groups as CSV")
    form.add_argument("--text", action="store_true", help="the table as plain text (default)")
    show.add_argument(
        "--at", type=int, metavar="STEP", help="of a recording: the state at the end of this step"
    )
    show.add_argument(
        "--compare",
        type=int,
        metavar="STEP",
        help="of a recording: what differs between --at and the end of this step",
    )
    rows = show.add_argument_group("rows")
    rows.add_argument(
        "--columns", type=parse_columns, metavar="KEY,…", help="the columns, named as in a filter"
    )
    rows.add_argument(
        "--filter",
        type=parse_filter,
        metavar="FILTER",
        help="the sequences, such as 'status:waiting'",
    )
    rows.add_argument(
        "--sort",
        type=parse_sort,
        metavar="KEY",
        help="sort key of the table: numbers descending, texts ascending; --sort=-KEY reverses the"
        " order",
    )
    rows.add_argument(
        "--by",
        type=parse_group_key,
        metavar="KEY",
        help="a row for each group of requests instead of each sequence, the one with the most KV"
        " blocks first: by prefix (the id up to its first separator, such as -), status, stage,"
        " prio, why, lora, or what an expression finds in the id (re:/user-(\\d+)/)",
    )
    following = show.add_argument_group("following")
    following.add_argument(
        "--follow",
        action="store_true",
        help="with --json: print a line now and after each change (docs/json.md)",
    )
    following.add_argument(
        "--every",
        type=not_negative,
        metavar="SECONDS",
        help="with --follow: the least time between lines, 0 for a line per change (default: 1)",
    )
    add_timeout(show)
    add_curve_keys(show)
    kv_events.add_options(show, tokenizer=False)
    show.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    others = (
        "follow",
        "at",
        "compare",
        "by",
        "columns",
        "filter",
        "sort",
        "server_key",
        "client_key",
    )
    conflict = kv_events.find_conflict(options, others) or _find_conflict(options)
    if conflict is not None:
        return fail(conflict, status=2)
    if options.kv_events is not None:
        return kv_events.show(options)
    if options.follow:
        return _follow(options)
    if "://" in options.source:
        return _show_live(options)
    return _show_recording(options)


def _find_conflict(options: argparse.Namespace) -> str | None:
    """Returns a sentence about options that exclude each other, or `None`."""
    is_live = "://" in options.source
    has_rows = options.columns or options.filter
    if options.follow and not options.json:
        return "--follow prints JSON lines: add --json"
    if options.every is not None and not options.follow:
        return "--every needs --follow"
    if options.follow and not is_live:
        return "--follow needs a running engine; seqtop export writes a whole recording"
    if options.at is not None and is_live:
        return "--at needs a recording: a running engine does not publish past steps"
    if options.compare is not None and options.at is None:
        return "--compare needs --at: the step to compare with"
    if options.compare is not None and (has_rows or options.sort):
        return "--compare prints differences: --columns, --filter and --sort are for the table"
    if options.csv and options.by is None:
        return "--csv needs --by; seqtop export --csv writes a row for each sequence"
    if options.by is not None and (options.columns or options.sort):
        return "--by has columns and an order of its own: --columns and --sort are for sequences"
    if options.by is not None and (options.follow or options.compare is not None):
        return "--by prints groups once: without --follow and --compare"
    if options.json and options.sort:
        return "--sort orders the table; in JSON sequences are in order of arrival"
    if options.json and has_rows and not options.follow and options.by is None:
        return "--columns and --filter need the table or --follow; filter a JSON document with jq"
    return None


def _show_recording(options: argparse.Namespace) -> int:
    from seqtop.history import RecordingError
    from seqtop.transport.connection import Connection, ConnectionState

    try:
        with open_recording(options.source) as recording:
            state = _state_at(recording, options.at)
            if options.compare is not None:
                print(_compare(state, _state_at(recording, options.compare), json=options.json))
                return 0
            connection = Connection(options.source, ConnectionState.REPLAY, recording.damage or "")
    except RecordingError as error:
        return fail(str(error), status=2)
    _print(_format(state, connection, options, is_recording=True), options)
    return 0


def _state_at(recording: FileStore, step: int | None) -> EngineState:
    """Returns the state at the end of a step, or of the recording; warns if it lacks the step."""
    if step is None:
        return recording.at(recording.last)
    if (nearest := nearest_step(recording, step)) is not None:
        warn(f"step {step:,} is not recorded; this is {nearest}")
    return recording.at(recording.index.at_step(step))


def _compare(one: EngineState, other: EngineState, *, json: bool) -> str:
    from seqtop.state.compare import compare, describe
    from seqtop.text.sanitize import indented_json
    from seqtop.text.tables import plain

    comparison = compare(one, other)
    return indented_json(comparison) if json else plain(line.text for line in describe(comparison))


def _show_live(options: argparse.Namespace) -> int:
    from seqtop.live.session import Session

    with (
        stream_of(options.source) as endpoint,
        Session(endpoint, keys=curve_keys(options)) as session,
    ):
        session.await_engine(options.timeout)
        with session.lock:
            output = _format(session.state, session.connection, options)
    _print(output, options)
    return _warn_of_errors(session.connection)


def _format(
    state: EngineState,
    connection: Connection,
    options: argparse.Namespace,
    *,
    is_recording: bool = False,
) -> str:
    from seqtop.export import json_document, text
    from seqtop.state import not_available
    from seqtop.state.filter import NO_FILTER
    from seqtop.state.ordering import Sort

    if options.by is not None:
        return _groups(state, options)
    if options.json:
        return json_document.encode(state, connection).decode()
    missing = state.info.not_available if state.info is not None else {}
    if columns := not_available.columns(missing):
        warn(not_available.describe(columns))
    table = text.table(
        state,
        columns=options.columns,
        sort=options.sort or Sort(),
        filter_=options.filter or NO_FILTER,
    )
    if options.columns:  # a script reads them
        return table
    return f"{text.verdicts(state, is_recording=is_recording)}\n{table}"


def _groups(state: EngineState, options: argparse.Namespace) -> str:
    from seqtop.export import groups
    from seqtop.state.filter import NO_FILTER
    from seqtop.state.groups import group_by

    if options.csv:
        return groups.as_csv(group_by(state, options.by, options.filter or NO_FILTER), options.by)
    form = groups.as_json if options.json else groups.as_text
    num_used = None if state.stats is None else state.stats.num_used_blocks
    return form(group_by(state, options.by, options.filter or NO_FILTER), options.by, num_used)


def _print(output: str, options: argparse.Namespace) -> None:
    if options.json:
        print_document(output)
    else:
        print(output)


def _follow(options: argparse.Namespace) -> int:
    from seqtop.export.follow import JsonLinesWriter, follow
    from seqtop.history.memory_store import MemoryStore
    from seqtop.live.session import Session
    from seqtop.process.signals import until_signalled
    from seqtop.state.filter import NO_FILTER

    every = 1.0 if options.every is None else options.every
    writer = JsonLinesWriter(options.columns, options.filter or NO_FILTER)
    with ExitStack() as stack:
        endpoint = stack.enter_context(stream_of(options.source))
        session = Session(endpoint, history=MemoryStore(max_bytes=0), keys=curve_keys(options))
        stack.enter_context(session)
        ended = stack.enter_context(until_signalled())
        session.await_engine(options.timeout)
        follow(session, writer, sys.stdout.buffer, every=every, ended=ended)
    return _warn_of_errors(session.connection)


def _warn_of_errors(connection: Connection) -> int:
    """Prints a warning if messages could not be read; returns the exit status."""
    if not connection.num_errors:
        return 0
    noun = "message" if connection.num_errors == 1 else "messages, the last of them"
    warn(f"cannot read {connection.num_errors:,} {noun}: {connection.last_error}")
    return INCOMPLETE
