"""`seqtop serve`: shows the app in a browser."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from seqtop.cli.messages import fail, warn
from seqtop.cli.options import Commands
from seqtop.process.argparse_ext import CommandParser
from seqtop.process.distribution import install_command
from seqtop.text.sanitize import safe_line
from seqtop.transport.endpoints import DEFAULT_ENDPOINT, is_loopback

_COMMANDS = ("attach", "replay", "demo")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    serve = commands.add_parser(
        "serve",
        help="show the app in a browser",
        description="Show the app in a browser. Each opened page starts a command, by default"
        " seqtop attach. There is no authentication, so by default only this machine is served."
        f" Needs the extra web: {install_command('web')}.",
        epilog="example: seqtop serve --port 9000 -- replay run.seqtop --loop",
    )
    serve.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help=f"after --: {', '.join(_COMMANDS)}, with options (default: attach)",
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"
    )
    serve.add_argument(
        "--port", type=_port, default=8080, help="the port to listen on (default: 8080)"
    )
    serve.add_argument(
        "--insecure",
        action="store_true",
        help="serve other machines: anyone who can reach the port reads every prompt, unencrypted",
    )
    assert isinstance(serve, CommandParser)
    serve.unknown_option_hint = (
        ": options of the command go after --, as in seqtop serve -- replay FILE --loop"
    )
    serve.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    command = options.command or ["attach"]
    if command[0] not in _COMMANDS:
        return fail(f"serve can show {', '.join(_COMMANDS)}, not {command[0]!r}", status=2)
    is_open = not is_loopback(options.host)
    if is_open and not options.insecure:
        return fail(
            f"{options.host} can be reached from other machines, and there is no authentication:"
            " anyone who reaches it reads every prompt; serve 127.0.0.1 and use a tunnel, or pass"
            " --insecure",
            status=2,
        )
    from seqtop.cli.parser import build_parser

    # Report a wrong command line here and not in the browser.
    command_options = build_parser().parse_args(command)
    if status := command_options.validate(command_options):
        return int(status)
    try:
        from seqtop.web.server import AppServer
    except ImportError:
        return fail(f"serve needs the extra web: {install_command('web')}")
    if is_open:
        warn("there is no authentication: anyone who reaches this port reads every prompt")
    server = AppServer(
        shlex.join([sys.executable, "-m", "seqtop", *command]),
        options.host,
        options.port,
        host_names=frozenset() if is_open else _LOOPBACK | {options.host},
        title=_title(command_options, command[0]),
    )
    try:
        server.serve()
    except OSError as error:
        return fail(
            f"{options.host}:{options.port} cannot be used ({error.strerror});"
            " choose another port with --port"
        )
    return 0


def _title(options: argparse.Namespace, command: str) -> str:
    """Returns the title of the page: the engines or the recording that the app shows."""
    if command == "replay":
        what = [Path(options.file).name]
    elif command == "attach":
        endpoints = [options.kv_events] if options.kv_events else options.endpoints
        what = [endpoint.removeprefix("tcp://") for endpoint in endpoints or [DEFAULT_ENDPOINT]]
    else:
        what = [command]
    return f"{safe_line(', '.join(what))} · seqtop"


def _port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65535")
    return int(text)
