"""`seqtop attach`: look at running engines."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from seqtop.cli import kv_events
from seqtop.cli.common import Commands, add_keys, add_look, fail, keys_of, run_app
from seqtop.transport.endpoints import DEFAULT_ENDPOINT, check, rank_endpoint


def add(commands: Commands) -> None:
    attach = commands.add_parser(
        "attach",
        help="look at running engines",
        description="Look at a running engine, or at several: then first at all of them side by"
        " side. The engines do not notice, and go on after you leave.",
        epilog="example: seqtop attach tcp://127.0.0.1:5557 tcp://127.0.0.1:5559",
    )
    attach.add_argument(
        "endpoints",
        nargs="*",
        metavar="ENDPOINT",
        help=f"tcp://HOST:PORT or ipc:///PATH (default: {DEFAULT_ENDPOINT})",
    )
    attach.add_argument(
        "--ranks",
        type=_count,
        default=1,
        metavar="N",
        help="how many data-parallel ranks there are behind each endpoint (default: 1)",
    )
    add_keys(attach)
    add_look(attach)
    kv_events.add(attach, tokenizer=True)
    attach.set_defaults(run=run, refuse=refuse)


def refuse(options: argparse.Namespace) -> int:
    """The exit status if it cannot be meant so, having said why; else 0.

    Raises:
        EndpointError: an endpoint is malformed.
        KeyFileError: the keys cannot be used.
    """
    others = ("endpoints", "columns", "sort", "filter", "slo", "server_key", "client_key")
    if (mistake := kv_events.mistake(options, others)) is not None:
        return fail(mistake, status=2)
    if options.kv_events is not None and options.ranks > 1:
        return fail("--kv-events shows one rank: name the endpoint of that one", status=2)
    for endpoint in filter(None, (options.kv_events, options.replay)):
        check(endpoint)
    _endpoints(options)
    keys_of(options)
    return 0


def run(options: argparse.Namespace) -> int:
    from seqtop.history.memory_store import DEFAULT_MAX_BYTES, MemoryStore
    from seqtop.session import Session

    if status := refuse(options):
        return status
    if options.kv_events is not None:
        return kv_events.attach(options)
    endpoints = _endpoints(options)
    keys = keys_of(options)
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(
                Session(
                    endpoint,
                    keys=keys,
                    # Together they remember as much as one alone would.
                    history=MemoryStore(max_bytes=DEFAULT_MAX_BYTES // len(endpoints)),
                )
            )
            for endpoint in endpoints
        ]
        return run_app(sessions, options)


def _endpoints(options: argparse.Namespace) -> list[str]:
    """Those of all ranks, each once; raises `EndpointError`."""
    endpoints = options.endpoints or [DEFAULT_ENDPOINT]
    ranks = range(options.ranks)
    return list(dict.fromkeys(rank_endpoint(each, rank) for each in endpoints for rank in ranks))


def _count(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= 64):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 64")
    return int(text)
