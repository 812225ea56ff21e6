"""`seqtop explain`: explains the latency of a request, or what the slow requests share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from seqtop.cli.messages import fail, print_answer
from seqtop.cli.options import Commands, parse_slo
from seqtop.cli.progress import shown_progress

if TYPE_CHECKING:
    from seqtop.history import FileStore
    from seqtop.history.replay import ShowProgress
    from seqtop.state import RequestState

_FIGURES = ("e2e", "ttft", "itl", "tpot", "queue")


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    explain = commands.add_parser(
        "explain",
        help="explain the latency of a request",
        description="Explain the latency of a recorded request: its time to first token and its"
        " end-to-end latency as a chain of parts that add up to them, each with its cause and the"
        " step in which it begins. With --slow, list the slow requests, and the fields in which"
        " they differ from the others; with --cache, explain the misses of the prefix cache.",
        epilog="example: seqtop explain run.seqtop req-7",
    )
    explain.add_argument("source", metavar="FILE", help="the recording")
    explain.add_argument("request", nargs="?", metavar="REQUEST", help="the id of the request")
    explain.add_argument(
        "--who",
        action="store_true",
        help="charge each second to the request itself, to other requests, to the engine's"
        " settings or to the host, and list the requests that it delayed; without REQUEST, list the"
        " requests that delayed others most",
    )
    explain.add_argument(
        "--slow",
        action="store_true",
        help="list the slow requests and the fields in which they differ, instead of REQUEST",
    )
    explain.add_argument(
        "--cache",
        action="store_true",
        help="explain the misses of the prefix cache, instead of REQUEST: their causes, how many of"
        " them more blocks would have removed, and the requests that missed most",
    )
    explain.add_argument(
        "--slo",
        type=parse_slo,
        metavar="FIGURE=TIME,…",
        help="with --slow: requests that missed one of these are slow, such as ttft=0.5,itl=50ms"
        " (default: the slowest tenth)",
    )
    explain.add_argument(
        "--by",
        choices=_FIGURES,
        default=_FIGURES[0],
        help=f"with --slow: the figure for the slowest tenth (default: {_FIGURES[0]})",
    )
    explain.add_argument(
        "--with-text",
        action="store_true",
        help="with --cache: quote the texts of requests where they begin to differ",
    )
    explain.add_argument("--json", action="store_true", help="the result as JSON")
    explain.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.cli.recordings import open_recording
    from seqtop.history import RecordingError

    if options.slow + options.who + options.cache > 1:
        return fail("give one of --who, --slow and --cache", status=2)
    if options.with_text and not options.cache:
        return fail("--with-text needs --cache", status=2)
    is_of_run = options.slow or options.cache
    if not options.who and is_of_run is (options.request is not None):
        return fail("give either the id of a request, or --slow or --cache", status=2)
    try:
        with (
            open_recording(options.source) as recording,
            shown_progress(f"reading {options.source}") as progress,
        ):
            if options.slow:
                return _slow(recording, options, progress)
            if options.cache:
                return _cache(recording, options, progress)
            if options.request is None:
                return _totals(recording, options, progress)
            return _request(recording, options, progress)
    except RecordingError as error:
        return fail(str(error), status=2)


def _request(recording: FileStore, options: argparse.Namespace, progress: ShowProgress) -> int:
    from seqtop.explain.explanation import explain, find_request_of_client
    from seqtop.explain.report import as_json, as_text

    match = find_request_of_client(recording, options.request)
    if match is None:
        return fail(f"the recording has no request {options.request!r}")
    if options.who:
        return _who(recording, match[0], options, progress)
    explanation = explain(recording, *match, progress)
    print_answer(options, as_json, as_text, explanation)
    return 0


def _who(
    recording: FileStore,
    request: RequestState,
    options: argparse.Namespace,
    progress: ShowProgress,
) -> int:
    from seqtop.ledger.ledger import find_blame
    from seqtop.ledger.report import as_json, as_text

    print_answer(options, as_json, as_text, find_blame(recording, request, progress))
    return 0


def _totals(recording: FileStore, options: argparse.Namespace, progress: ShowProgress) -> int:
    from seqtop.ledger.ledger import harm_totals
    from seqtop.ledger.report import totals_as_json, totals_as_text

    reader = harm_totals(recording, progress)
    totals, costs = reader.totals(), reader.state.step_costs
    print_answer(options, totals_as_json, totals_as_text, costs, totals)
    return 0


def _cache(recording: FileStore, options: argparse.Namespace, progress: ShowProgress) -> int:
    from seqtop.misses.cache_misses import read_misses
    from seqtop.misses.report import as_json, as_text

    misses = read_misses(recording, progress)
    print_answer(options, as_json, as_text, misses, with_text=options.with_text)
    return 0


def _slow(recording: FileStore, options: argparse.Namespace, progress: ShowProgress) -> int:
    from seqtop.explain.outliers import find_outliers
    from seqtop.explain.report import outliers_as_json, outliers_as_text
    from seqtop.state.slo import Slo

    outliers = find_outliers(recording, options.slo or Slo(), options.by, progress)
    print_answer(options, outliers_as_json, outliers_as_text, outliers)
    return 0
