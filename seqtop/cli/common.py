"""What several commands share: their arguments, how they show the app and how they fail."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from seqtop.argparse_ext import not_negative
from seqtop.sanitize import safe_line
from seqtop.transport.endpoints import DEFAULT_ENDPOINT

if TYPE_CHECKING:
    from seqtop.history import FileStore
    from seqtop.state.filter import Filter, UnknownFieldError
    from seqtop.state.ordering import Sort
    from seqtop.transport.curve_keys import ViewerKeys
    from seqtop.tui.source import Source

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
    from seqtop.transport.curve_keys import KeyFileError, viewer_keys

    if options.server_key is None or options.client_key is None:
        raise KeyFileError("--server-key and --client-key belong together: give both")
    return viewer_keys(options.server_key, options.client_key)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=not_negative,
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for the engine (default: 5)",
    )


def add_look(parser: argparse.ArgumentParser) -> None:
    """Options on how the app is to look at first."""
    group = parser.add_argument_group("how it looks at first")
    group.add_argument(
        "--columns",
        type=_setting("parse_columns"),
        metavar="KEY,…",
        help="the table's columns, in their order, such as request,status,out,ttft",
    )
    group.add_argument(
        "--sort",
        type=_setting("parse_sort", as_typed=True),
        metavar="KEY",
        help="what to sort by: figures the largest first, all else from the smallest or from A on;"
        " --sort=-KEY reverses that (default: lifecycle, the running first, the finished last)",
    )
    group.add_argument(
        "--filter",
        type=_setting("parse_filter"),
        metavar="FILTER",
        help="which sequences to show, such as 'status:waiting prompt>1k'",
    )
    group.add_argument(
        "--slo",
        type=_setting("parse_slo"),
        metavar="FIGURE=TIME,…",
        help="objectives for ttft, itl, tpot, queue and e2e, such as ttft=0.5,itl=50ms",
    )
    group.add_argument(
        "--config",
        type=_existing,
        metavar="FILE",
        help="read settings from here (default: ~/.config/seqtop/config.toml)",
    )


def _setting(parser: str, *, as_typed: bool = False) -> Callable[[str], Any]:
    """What understands an option as the function `parser` of the app's settings does."""

    def understand(text: str) -> Any:
        from seqtop.state.filter import UnknownFieldError
        from seqtop.tui import settings

        try:
            found = getattr(settings, parser)(text)
        except settings.SettingsError as error:
            wrong = error.__cause__
            said = _listed(wrong) if isinstance(wrong, UnknownFieldError) else str(error)
            raise argparse.ArgumentTypeError(said) from error
        return text if as_typed else found

    return understand


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def row_sort(text: str) -> Sort:
    """An order as `add_look` has it."""
    found: Sort = _setting("parse_sort")(text)
    return found


def row_columns(text: str) -> list[str]:
    """The keys of columns, separated by commas."""
    from seqtop.state.fields import FIELDS

    keys = [key.strip() for key in text.split(",")]
    if unknown := [key for key in keys if key not in FIELDS]:
        raise argparse.ArgumentTypeError(
            f"no column {', '.join(map(repr, unknown))}: there are {', '.join(FIELDS)}"
        )
    return list(dict.fromkeys(keys))


def _listed(error: UnknownFieldError) -> str:
    """The error with all the fields there are, as there is no help at hand that lists them."""
    from seqtop.state.fields import FIELDS

    wrong = str(error).partition(":")[0]
    return f"{wrong}: there are {', '.join(FIELDS)}"


def row_filter(text: str) -> Filter:
    from seqtop.state.filter import FilterError, UnknownFieldError, parse

    try:
        return parse(text)
    except UnknownFieldError as error:
        raise argparse.ArgumentTypeError(_listed(error)) from error
    except FilterError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@contextmanager
def opened(path: str) -> Iterator[FileStore]:
    """The recording at `path`; what is lost of it is said on standard error.

    Raises:
        RecordingError: it cannot be read, or there is nothing in it.
    """
    from seqtop.history import FileStore

    with FileStore(path) as recording:
        recording.require()
        if recording.damage:
            fail(recording.damage)
        yield recording


def nearest(recording: FileStore, step: int) -> str | None:
    """What stands in for `step`, of the engine's newest start; `None` if it is on record."""
    there = recording.marks[recording.marks.at_step(step)].step
    if there == step:
        return None
    return f"step {there:,}" if there >= 0 else "what was before the first step"


NO_TERMINAL = "the app needs a terminal; `seqtop show` prints to a file or a pipe"


def has_terminal() -> bool:
    """Whether there is something that the app can be drawn on."""
    # Textual draws on standard error: redirected, it would fill a log with screens.
    # In a browser (`seqtop serve`) there is no terminal, but a driver that Textual is told of.
    is_served = "TEXTUAL_DRIVER" in os.environ
    return is_served or (sys.stdin.isatty() and sys.stderr.isatty())


def run_app(
    sources: Sequence[Source], options: argparse.Namespace, remarks: Sequence[str] = ()
) -> int:
    """Show `sources` until the user leaves; `options` are those of `add_look`.

    `remarks` are sentences to be shown at the start.
    """
    if not has_terminal():
        return fail(NO_TERMINAL)
    gc.disable()  # what is imported stays; the app enables it again, and collects in its own time
    from seqtop import paths
    from seqtop.tui.app import SeqtopApp
    from seqtop.tui.settings import SavedState, Settings, read

    asked = Settings(
        columns=options.columns,
        sort=options.sort,
        filter=options.filter,
        slo=options.slo and dict(options.slo.limits),
    )
    written, problems = read(options.config or paths.config_file())
    memory = SavedState(paths.memory_file())
    app = SeqtopApp(
        *sources,
        settings=asked.over(written).over(memory.settings),
        memory=memory,
        problems=[*remarks, *problems, *memory.problems],
    )
    status = app.run()
    if app.farewell is not None:
        print(f"seqtop: {app.farewell}", file=sys.stderr)
    return app.return_code or 0 if status is None else status


def fail(sentence: str, *, status: int = 1) -> int:
    print(f"seqtop: {safe_line(sentence)}", file=sys.stderr)
    return status
