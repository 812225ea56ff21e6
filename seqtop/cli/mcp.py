"""`seqtop mcp`: answers the tools of a Model Context Protocol client."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from seqtop.cli.http_servers import stream_of
from seqtop.cli.messages import fail, warn
from seqtop.cli.options import Commands, add_curve_keys, add_source, add_timeout, curve_keys
from seqtop.process.argparse_ext import positive
from seqtop.process.distribution import install_command

if TYPE_CHECKING:
    from seqtop.mcp.source import Source


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    mcp = commands.add_parser(
        "mcp",
        help="answer an assistant's questions, as a server of the Model Context Protocol",
        description="Answer questions of a client of the Model Context Protocol, such as an"
        " assistant that writes code, on standard input and output: what limits an engine, why a"
        " request was slow, what if the settings had been others, and which settings meet"
        " objectives. Nothing is changed, nothing listens on a network, and answers have at most"
        f" 2 kB, without prompts and outputs. Needs the extra mcp: {install_command('mcp')}.",
        epilog="example, as the command of a client: seqtop mcp run.seqtop",
    )
    add_source(mcp)
    mcp.add_argument(
        "--with-text",
        action="store_true",
        help="let explanations quote the beginnings of the prompt and of the output",
    )
    mcp.add_argument(
        "--time-limit",
        type=positive,
        default=30.0,  # many clients wait for a minute
        metavar="SECONDS",
        help="the longest time of a prediction, and of the search for advice, which then has the"
        " best so far (default: 30)",
    )
    mcp.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="the Python that runs the engine's scheduler for predictions, which has the engine and"
        " seqtop",
    )
    add_timeout(mcp)
    add_curve_keys(mcp)
    mcp.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    try:
        from seqtop.mcp.server import serve
    except ImportError:
        return fail(f"mcp needs the extra mcp: {install_command('mcp')}")
    from seqtop.history import RecordingError
    from seqtop.mcp.tools import Context

    with ExitStack() as stack:
        try:
            source = _open(options, stack)
        except RecordingError as error:
            return fail(str(error), status=2)
        if sys.stdin.isatty():
            warn("a client starts this command, and asks on standard input; Ctrl-D ends it")
        context = Context(
            source,
            with_text=options.with_text,
            seconds=options.time_limit,
            python=options.python,
        )
        stack.callback(context.close)
        serve(context)
    return 0


def _open(options: argparse.Namespace, stack: ExitStack) -> Source:
    """Opens the engine or the recording.

    Raises:
        RecordingError: The recording cannot be read.
    """
    from seqtop.live.session import Session
    from seqtop.mcp.source import EngineSource, RecordedSource

    if "://" not in options.source:
        source = RecordedSource(options.source)
        source.notes()
        return source
    endpoint = stack.enter_context(stream_of(options.source))
    session = stack.enter_context(Session(endpoint, keys=curve_keys(options)))
    return EngineSource(session, options.timeout)
