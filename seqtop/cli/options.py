"""Options that several commands share, and the parsers of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from seqtop.process.argparse_ext import not_negative
from seqtop.transport.endpoints import DEFAULT_ENDPOINT, with_scheme

if TYPE_CHECKING:
    from seqtop.state.filter import Filter, UnknownFieldError
    from seqtop.state.ordering import Sort
    from seqtop.state.slo import Objective, Slo
    from seqtop.transport.curve_keys import ViewerKeys

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The object to which a command adds its parser."""


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Adds the argument ENDPOINT."""
    parser.add_argument(
        "endpoint",
        nargs="?",
        type=with_scheme,
        default=DEFAULT_ENDPOINT,
        metavar="ENDPOINT",
        help=f"HOST:PORT or ipc:///PATH (default: {DEFAULT_ENDPOINT})",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds the argument ENDPOINT|FILE."""
    parser.add_argument(
        "source",
        nargs="?",
        type=_endpoint_or_file,
        default=DEFAULT_ENDPOINT,
        metavar="ENDPOINT|FILE",
        help=f"a running engine or a recording (default: {DEFAULT_ENDPOINT})",
    )


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments ENDPOINT|FILE|DIR…."""
    parser.add_argument(
        "sources",
        nargs="*",
        type=_endpoint_or_file,
        default=[DEFAULT_ENDPOINT],
        metavar="ENDPOINT|FILE|DIR",
        help="a running engine, or recordings, or folders with recordings (default:"
        f" {DEFAULT_ENDPOINT})",
    )


def _endpoint_or_file(text: str) -> str:
    return text if Path(text).exists() else with_scheme(text)


def add_curve_keys(parser: argparse.ArgumentParser) -> None:
    """Adds `--server-key` and `--client-key`."""
    group = parser.add_argument_group("keys", "for an engine that requires CurveZMQ keys")
    group.add_argument(
        "--server-key", metavar="FILE|KEY", help="the engine's public key, or a file with it"
    )
    group.add_argument(
        "--client-key", metavar="FILE", help="your own secret key file, made by seqtop keygen"
    )


def curve_keys(options: argparse.Namespace) -> ViewerKeys | None:
    """Returns the keys named by `--server-key` and `--client-key`, if any.

    Raises:
        KeyFileError: A key cannot be used, or only one of the two options is given.
    """
    if options.server_key is None and options.client_key is None:
        return None
    from seqtop.transport.curve_keys import KeyFileError, viewer_keys

    if options.server_key is None or options.client_key is None:
        raise KeyFileError("--server-key and --client-key belong together: give both")
    return viewer_keys(options.server_key, options.client_key)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Adds `--timeout`."""
    parser.add_argument(
        "--timeout",
        type=not_negative,
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for the engine (default: 5)",
    )


def add_thresholds(parser: argparse._ActionsContainer) -> None:
    """Adds `--threshold`."""
    parser.add_argument(
        "--threshold",
        type=_thresholds,
        default={},
        metavar="NAME=NUMBER,…",
        help="thresholds of warnings, such as no_progress_steps=50,overtaken_requests=3",
    )


def _thresholds(text: str) -> dict[str, float]:
    from seqtop.checks.thresholds import ThresholdError, parse

    try:
        return parse(text)
    except ThresholdError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that set the app's first view."""
    group = parser.add_argument_group("view")
    group.add_argument(
        "--columns",
        type=_setting("parse_columns"),
        metavar="KEY,…",
        help="the table's columns, in order, such as request,status,out,ttft",
    )
    group.add_argument(
        "--sort",
        type=_setting("parse_sort", as_typed=True),
        metavar="KEY",
        help="sort key: numbers descending, texts ascending; --sort=-KEY reverses the order"
        " (default: running sequences first, finished ones last)",
    )
    group.add_argument(
        "--filter",
        type=_setting("parse_filter"),
        metavar="FILTER",
        help="the sequences to show, such as 'status:waiting prompt>1k'",
    )
    group.add_argument(
        "--slo",
        type=parse_slo,
        metavar="FIGURE=TIME,…",
        help="objectives for ttft, itl, tpot, queue and e2e, such as ttft=0.5,itl=50ms",
    )
    group.add_argument(
        "--ascii",
        action="store_true",
        default=None,
        help="draw everything in ASCII, for fonts and terminals without other signs",
    )
    group.add_argument(
        "--config",
        type=_existing_file,
        metavar="FILE",
        help="the configuration file (default: ~/.config/seqtop/config.toml)",
    )


def _setting(parser: str, *, as_typed: bool = False) -> Callable[[str], Any]:
    """Returns an argparse type that calls the function `parser` of the app's settings."""

    def parse(text: str) -> Any:
        from seqtop.state.filter import UnknownFieldError
        from seqtop.tui import settings

        try:
            value = getattr(settings, parser)(text)
        except settings.SettingsError as error:
            cause = error.__cause__
            message = (
                _with_all_fields(cause) if isinstance(cause, UnknownFieldError) else str(error)
            )
            raise argparse.ArgumentTypeError(message) from error
        return text if as_typed else value

    return parse


def _existing_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def parse_sort(text: str) -> Sort:
    """Parses a sort key. Raises `argparse.ArgumentTypeError`."""
    sort: Sort = _setting("parse_sort")(text)
    return sort


def parse_slo(text: str) -> Slo:
    """Parses objectives. Raises `argparse.ArgumentTypeError`."""
    slo: Slo = _setting("parse_slo")(text)
    return slo


def parse_objective(text: str) -> Objective:
    """Parses objectives with a percentile. Raises `argparse.ArgumentTypeError`."""
    from seqtop.state import slo

    try:
        return slo.parse_objective(text)
    except slo.SloError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_condition(text: str) -> str:
    """Checks a condition and returns it. Raises `argparse.ArgumentTypeError`."""
    from seqtop.state import condition
    from seqtop.state.filter import FilterError, UnknownFieldError

    try:
        return condition.parse_condition(text).source
    except UnknownFieldError as error:
        raise argparse.ArgumentTypeError(
            f"{_with_all_fields(error)}, {', '.join(condition.ENGINE_FIELDS)}"
        ) from error
    except FilterError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_share(text: str) -> float:
    """Parses a share, such as 0.1 or 10%. Raises `argparse.ArgumentTypeError`."""
    from seqtop.state.filter import FilterError, share

    try:
        value = share(text)
    except FilterError:
        value = None
    if value is None or value < 0 or (value > 1 and not text.endswith("%")):
        raise argparse.ArgumentTypeError(f"{text!r} is no share, such as 10% or 0.1")
    return value


def parse_duration(text: str) -> float:
    """Parses a time, such as 60 or 2m; returns seconds. Raises `argparse.ArgumentTypeError`."""
    from seqtop.state.filter import FilterError, quantity

    try:
        seconds = quantity(text)
    except FilterError:
        seconds = None
    if seconds is None or seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0, such as 60 or 2m")
    return seconds


def parse_columns(text: str) -> list[str]:
    """Parses the keys of columns, separated by commas. Raises `argparse.ArgumentTypeError`."""
    from seqtop.state.fields import FIELDS

    keys = [key.strip() for key in text.split(",")]
    if unknown := [key for key in keys if key not in FIELDS]:
        raise argparse.ArgumentTypeError(
            f"no column {', '.join(map(repr, unknown))}: there are {', '.join(FIELDS)}"
        )
    return list(dict.fromkeys(keys))


def parse_group_key(text: str) -> str:
    """Parses a key that requests are grouped by. Raises `argparse.ArgumentTypeError`."""
    from seqtop.state.groups import GroupKeyError, name_by

    try:
        name_by(text)
    except GroupKeyError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def parse_filter(text: str) -> Filter:
    """Parses a filter. Raises `argparse.ArgumentTypeError`."""
    from seqtop.state.filter import FilterError, UnknownFieldError, parse

    try:
        return parse(text)
    except UnknownFieldError as error:
        raise argparse.ArgumentTypeError(_with_all_fields(error)) from error
    except FilterError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _with_all_fields(error: UnknownFieldError) -> str:
    """Returns the error's message followed by all fields, which no help text lists here."""
    from seqtop.state.fields import FIELDS

    message = str(error).partition(":")[0]
    return f"{message}: there are {', '.join(FIELDS)}"
