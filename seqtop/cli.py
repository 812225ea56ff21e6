"""The `seqtop` command.

Exit status: 0 for success, 1 when the engine cannot be reached or understood or `check` has found
something, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from seqtop import __version__
from seqtop.link import LinkState, UnreachableError
from seqtop.wire.endpoints import DEFAULT_ENDPOINT, EndpointError

if TYPE_CHECKING:
    from seqtop.state import EngineState
    from seqtop.tui.source import Source

_EXAMPLES = """\
examples:
  seqtop demo                              watch the bundled engine on this machine
  engine-stub serve --control              run the bundled engine for others to look at
  seqtop attach tcp://127.0.0.1:5557       look at a running engine
  seqtop record -o run.seqtop              write down what it does, until Ctrl-C
  seqtop replay run.seqtop                 look at it later
  seqtop show --json | jq .stats           print its state once, for a script
  seqtop check run.seqtop                  find what cannot be right in it
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except EndpointError as error:
        return _fail(str(error), status=2)
    except UnreachableError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing is left to say, or to say it to.
        sys.stderr.close()
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="seqtop",
        description="See what an LLM inference engine is doing to every sequence, live.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"seqtop {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_attach(commands)
    _add_record(commands)
    _add_replay(commands)
    _add_show(commands)
    _add_check(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="start the bundled engine with a workload and watch it",
        description="Start the bundled engine in a process of its own, give it something to do and"
        " watch it. Both end together.",
        epilog="example: seqtop demo --pace 5",
    )
    demo.add_argument("--model", help="a directory with a Llama checkpoint (default: the bundled)")
    demo.add_argument("--device", default="auto", help="cpu, cuda or auto (default: auto)")
    demo.add_argument(
        "--pace",
        type=float,
        default=15.0,
        metavar="STEPS",
        help="at most so many engine steps per second, 0 for no limit (default: 15)",
    )
    demo.set_defaults(run=_demo)


def _add_attach(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    attach = commands.add_parser(
        "attach",
        help="look at a running engine",
        description="Look at a running engine. The engine does not notice, and goes on after you"
        " leave.",
        epilog="example: seqtop attach tcp://127.0.0.1:5557",
    )
    _add_endpoint(attach)
    attach.set_defaults(run=_attach)


def _add_record(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    record = commands.add_parser(
        "record",
        help="write down what a running engine does",
        description="Record a running engine to a file that only you may read, until Ctrl-C. The"
        " file holds prompts and outputs.",
        epilog="example: seqtop record tcp://127.0.0.1:5557 -o run.seqtop --duration 60",
    )
    _add_endpoint(record)
    record.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write")
    record.add_argument("--force", action="store_true", help="replace the file if it exists")
    record.add_argument(
        "--duration", type=_positive, metavar="SECONDS", help="end by itself after so long"
    )
    record.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for the engine (default: 5)",
    )
    record.set_defaults(run=_record)


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = commands.add_parser(
        "replay",
        help="look at a recording",
        description="Play a recording as if it happened now.",
        epilog="example: seqtop replay run.seqtop --speed 4 --at 1200",
    )
    replay.add_argument("file", metavar="FILE", help="what seqtop record has written")
    replay.add_argument(
        "--speed",
        type=_positive,
        default=1.0,
        metavar="X",
        help="so many times as fast as it was (default: 1)",
    )
    replay.add_argument("--loop", action="store_true", help="begin again at the end")
    replay.add_argument("--at", type=int, metavar="STEP", help="begin at the end of this step")
    replay.set_defaults(run=_replay)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = commands.add_parser(
        "show",
        help="print the state of a running engine, or the end of a recording, once",
        description="Print the state of a running engine, or that at the end of a recording, once,"
        " for scripts.",
        epilog="example: seqtop show --json | jq '.requests[].request_id'",
    )
    _add_source(show)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as one JSON document")
    form.add_argument("--text", action="store_true", help="the table, as plain text (default)")
    show.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for the engine (default: 5)",
    )
    show.set_defaults(run=_show)


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check",
        help="hold an engine, or a recording, to what must be true of any engine",
        description="Look for what cannot be right: blocks owned twice, leaks, tokens after the"
        " end, budgets exceeded. The exit status is 1 if something is found.",
        epilog="example: seqtop check run.seqtop --junit > report.xml",
    )
    _add_source(check)
    form = check.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the report as JSON")
    form.add_argument("--junit", action="store_true", help="the report as JUnit XML")
    check.add_argument(
        "--duration",
        type=_positive,
        metavar="SECONDS",
        help="end by itself after so long (default: at Ctrl-C, or when the engine stops)",
    )
    check.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for the engine (default: 5)",
    )
    check.set_defaults(run=_check)


def _add_endpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "endpoint",
        nargs="?",
        default=DEFAULT_ENDPOINT,
        metavar="ENDPOINT",
        help=f"tcp://HOST:PORT or ipc:///PATH (default: {DEFAULT_ENDPOINT})",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="?",
        default=DEFAULT_ENDPOINT,
        metavar="ENDPOINT|FILE",
        help=f"a running engine or a recording (default: {DEFAULT_ENDPOINT})",
    )


def _attach(options: argparse.Namespace) -> int:
    from seqtop.session import Session

    with Session(options.endpoint) as session:
        return _run_app(session)


def _demo(options: argparse.Namespace) -> int:
    from seqtop.demo import DemoEngine, DemoError
    from seqtop.session import Session

    try:
        with (
            DemoEngine(model=options.model, device=options.device, pace=options.pace) as engine,
            Session(engine.endpoint) as session,
        ):
            print("seqtop: starting the bundled engine …", file=sys.stderr)
            engine.await_live(session)
            status = _run_app(session)
            failure = engine.failure()
    except DemoError as error:
        return _fail(str(error))
    return _fail(failure) if failure else status


def _record(options: argparse.Namespace) -> int:
    from seqtop.recording import RecordingError
    from seqtop.recording.commands import record

    try:
        record(
            options.endpoint,
            options.output,
            overwrite=options.force,
            duration=options.duration,
            timeout=options.timeout,
        )
    except RecordingError as error:
        return _fail(str(error))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from seqtop.recording import Recording, RecordingError
    from seqtop.replay import ReplaySource

    try:
        with (
            Recording(options.file) as recording,
            ReplaySource(
                recording,
                options.file,
                speed=options.speed,
                loop=options.loop,
                position=0 if options.at is None else recording.marks.at_step(options.at),
                detail=recording.damage or "",
            ) as source,
        ):
            return _run_app(source)
    except RecordingError as error:
        return _fail(str(error))


def _show(options: argparse.Namespace) -> int:
    from seqtop.export import document, text
    from seqtop.link import Link
    from seqtop.recording import RecordingError, final_state
    from seqtop.session import Session

    def shown(state: EngineState, link: Link) -> str:
        return document.encode(state, link).decode() if options.json else text.table(state)

    if "://" not in options.source:
        try:
            print(shown(final_state(options.source), Link(options.source, LinkState.REPLAY)))
        except RecordingError as error:
            return _fail(str(error))
        return 0
    with Session(options.source) as session:
        session.await_engine(options.timeout)
        with session.lock:
            output = shown(session.state, session.link)
    print(output)
    return 0


def _check(options: argparse.Namespace) -> int:
    from seqtop.checking import check_live, check_recording
    from seqtop.recording import RecordingError
    from seqtop.signals import until_signalled

    try:
        if "://" in options.source:
            with until_signalled() as ended:
                report = check_live(
                    options.source,
                    ended=ended,
                    duration=options.duration,
                    timeout=options.timeout,
                )
        else:
            report = check_recording(options.source)
    except RecordingError as error:
        return _fail(str(error))
    if options.json:
        print(report.as_json())
    else:
        print(report.as_junit() if options.junit else report.as_text())
    return 1 if report.findings else 0


def _run_app(source: Source) -> int:
    """Show `source` until the user leaves."""
    # Textual draws on standard error: redirected, it would fill a log with screens.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return _fail("the app needs a terminal; `seqtop show` prints to a file or a pipe")
    from seqtop.tui.app import SeqtopApp

    return SeqtopApp(source).run() or 0


def _fail(sentence: str, *, status: int = 1) -> int:
    print(f"seqtop: {sentence}", file=sys.stderr)
    return status
