"""`seqtop attach`: shows running engines in the app."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from seqtop.cli import found_engines, kv_events
from seqtop.cli.http_servers import is_http, stream_of
from seqtop.cli.messages import fail
from seqtop.cli.options import (
    Commands,
    add_curve_keys,
    add_view_options,
    curve_keys,
    parse_condition,
)
from seqtop.cli.run_app import run_app
from seqtop.text.sanitize import safe_line
from seqtop.transport import local_engines
from seqtop.transport.endpoints import DEFAULT_ENDPOINT, check, rank_endpoint, with_scheme
from seqtop.transport.local_engines import LocalEngineError

if TYPE_CHECKING:
    from seqtop.discovery import Discovery

_MAX_RANKS = 64


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    attach = commands.add_parser(
        "attach",
        help="show running engines",
        description="Show a running engine, or several: then the fleet screen comes first. The"
        " engines are unaffected and keep running after you quit. Without an endpoint, show your"
        " engine on this machine, or list them if there are several.",
        epilog="examples: seqtop attach localhost:5557 localhost:5559; seqtop attach --kubernetes"
        " app=vllm",
    )
    attach.add_argument(
        "endpoints",
        nargs="*",
        type=with_scheme,
        metavar="ENDPOINT",
        help="HOST:PORT or ipc:///PATH, or the process id of an engine in the list, or the address"
        f" http://HOST:PORT of llama.cpp's server (default: your engine on this machine, or"
        f" {DEFAULT_ENDPOINT})",
    )
    attach.add_argument(
        "--ranks",
        type=_num_ranks,
        default=1,
        metavar="N",
        help="the number of data-parallel ranks behind each endpoint (default: 1)",
    )
    attach.add_argument(
        "--on",
        action="append",
        type=parse_condition,
        metavar="CONDITION",
        help="ring the bell, and send a notification to the desktop, when this condition begins to"
        " hold, such as 'waiting>20 kv>95%%'; can be given several times",
    )
    found_engines.add_options(attach)
    add_curve_keys(attach)
    add_view_options(attach)
    kv_events.add_options(attach, tokenizer=True)
    attach.set_defaults(run=run, validate=validate)


def validate(options: argparse.Namespace) -> int:
    """Prints what is wrong with the options, if anything, and returns the exit status.

    Raises:
        EndpointError: An endpoint is malformed.
        KeyFileError: A key cannot be used.
    """
    registers = ("kubernetes", "ray", "targets", "local")
    others = (
        "endpoints",
        *registers,
        "columns",
        "sort",
        "filter",
        "slo",
        "on",
        "server_key",
        "client_key",
    )
    if (conflict := kv_events.find_conflict(options, others)) is not None:
        return fail(conflict, status=2)
    if options.kv_events is not None and options.ranks > 1:
        return fail("--kv-events shows one rank: give the endpoint of that rank", status=2)
    for endpoint in filter(None, (options.kv_events, options.replay)):
        check(endpoint)
    if (conflict := found_engines.find_conflict(options)) is not None:
        return fail(conflict, status=2)
    if options.ranks > 1 and any(map(is_http, options.endpoints)):
        return fail(
            "--ranks is for engines that publish: llama.cpp's server has no ranks", status=2
        )
    for endpoint in options.endpoints:
        if not (endpoint.isdecimal() or is_http(endpoint)):
            rank_endpoint(endpoint, options.ranks - 1)
    curve_keys(options)
    return 0


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.live.session import Session, most_sessions
    from seqtop.tui.ui_state import MAX_STREAMS

    if status := validate(options):
        return status
    if options.kv_events is not None:
        return kv_events.attach(options)
    try:
        discovery = found_engines.discovery_of(options)
    except found_engines.MissingExtraError as error:
        return fail(str(error))
    if discovery is not None:
        return _run_found(discovery, options)
    try:
        chosen = options.endpoints or _own_engine()
        if chosen is None:
            return 0
        endpoints = _rank_endpoints([_endpoint_of(engine) for engine in chosen], options.ranks)
    except LocalEngineError as error:
        return fail(str(error))
    if (most := most_sessions(len(endpoints))) < len(endpoints):
        return fail(
            f"{len(endpoints)} engines need more open files than this process may have: {most}"
            " engines are possible; raise the limit, as with `ulimit -n 4096`"
        )
    keys = curve_keys(options)
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(
                Session(
                    stack.enter_context(stream_of(endpoint)),
                    keys=keys,
                    is_subscribed=len(endpoints) <= MAX_STREAMS,
                )
            )
            for endpoint in endpoints
        ]
        return run_app(sessions, options)


def _run_found(discovery: Discovery, options: argparse.Namespace) -> int:
    """Shows the engines that a register lists; returns the exit status."""
    from seqtop.discovery import DiscoveryError

    keys = curve_keys(options)
    with ExitStack() as stack:
        try:
            discovery.start()
        except DiscoveryError as error:
            return fail(str(error))
        stack.callback(discovery.close)
        found = found_engines.FoundSessions(discovery, stack, num_ranks=options.ranks, keys=keys)
        if not (sessions := found.take_new()):
            return fail(found.take_problem() or discovery.explain_none())
        return run_app(sessions, options, found=found)


def _own_engine() -> list[str] | None:
    """Returns the only engine of this user, or the default endpoint if there is none.

    If there are several, prints a list and returns `None`.
    """
    engines = local_engines.find()
    if not engines:
        return [DEFAULT_ENDPOINT]
    if len(engines) == 1:
        return [engines[0].endpoint or str(engines[0].pid)]
    print("Your engines on this machine:")
    for engine in engines:
        argument = engine.endpoint or str(engine.pid)
        status = "publishes" if engine.endpoint else "dormant"
        print(f"  {safe_line(engine.name)} ({status}): seqtop attach {safe_line(argument)}")
    return None


def _endpoint_of(chosen: str) -> str:
    """Returns an endpoint; wakes the engine if `chosen` is the process id of a dormant one."""
    if not chosen.isdecimal():
        return chosen
    for engine in local_engines.find():
        if engine.pid == int(chosen) and engine.endpoint:
            return engine.endpoint
    return local_engines.wake(int(chosen))


def _rank_endpoints(endpoints: list[str], num_ranks: int) -> list[str]:
    """Returns the endpoints of all ranks without duplicates; raises `EndpointError`."""
    ranks = range(num_ranks)
    return list(
        dict.fromkeys(
            endpoint if is_http(endpoint) else rank_endpoint(endpoint, rank)
            for endpoint in endpoints
            for rank in ranks
        )
    )


def _num_ranks(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= _MAX_RANKS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MAX_RANKS}")
    return int(text)
