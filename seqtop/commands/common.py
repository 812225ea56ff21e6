"""What several commands share: their arguments, how they show the app and how they fail."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, TypeAlias

from seqtop.wire.endpoints import DEFAULT_ENDPOINT

if TYPE_CHECKING:
    from seqtop.tui.source import Source
    from seqtop.wire.keys import ViewerKeys

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a command adds itself."""


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "endpoint",
        nargs="?",
        default=DEFAULT_ENDPOINT,
        metavar="ENDPOINT",
        help=f"tcp://HOST:PORT or ipc:///PATH (default: {DEFAULT_ENDPOINT})",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="?",
        default=DEFAULT_ENDPOINT,
        metavar="ENDPOINT|FILE",
        help=f"a running engine or a recording (default: {DEFAULT_ENDPOINT})",
    )


def add_keys(parser: argparse.ArgumentParser) -> None:
    keys = parser.add_argument_group("keys", "for an engine that lets in holders of keys alone")
    keys.add_argument(
        "--server-key", metavar="FILE|KEY", help="the engine's public key, or the file it is in"
    )
    keys.add_argument(
        "--client-key", metavar="FILE", help="your own secret key file, made by seqtop keygen"
    )


def keys_of(options: argparse.Namespace) -> ViewerKeys | None:
    """The keys that were given.

    Raises:
        KeyFileError: they cannot be used, or only one of them was given.
    """
    if options.server_key is None and options.client_key is None:
        return None
    from seqtop.wire.keys import KeyFileError, viewer_keys

    if options.server_key is None or options.client_key is None:
        raise KeyFileError("--server-key and --client-key belong together: give both")
    return viewer_keys(options.server_key, options.client_key)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for the engine (default: 5)",
    )


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def run_app(source: Source) -> int:
    """Show `source` until the user leaves."""
    # Textual draws on standard error: redirected, it would fill a log with screens.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return fail("the app needs a terminal; `seqtop show` prints to a file or a pipe")
    from seqtop.tui.app import SeqtopApp

    return SeqtopApp(source).run() or 0


def fail(sentence: str, *, status: int = 1) -> int:
    print(f"seqtop: {sentence}", file=sys.stderr)
    return status
