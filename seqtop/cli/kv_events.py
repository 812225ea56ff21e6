"""The option `--kv-events` of `attach` and `show`, which read KV-cache events, not an engine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqtop.cli.messages import fail, print_document
from seqtop.cli.run_app import NO_TERMINAL, has_terminal
from seqtop.text.ascii_output import use_ascii
from seqtop.text.tokenizer_file import TokenizerError, read_tokenizer

if TYPE_CHECKING:
    from seqtop.kv.session import KvSession
    from seqtop.kv.ui_state import TokenDecoder


def add_options(parser: argparse.ArgumentParser, *, tokenizer: bool) -> None:
    """Adds `--kv-events` and the options that belong to it.

    Args:
        tokenizer: Adds `--tokenizer` too, for a command that shows tokens as text.
    """
    group = parser.add_argument_group(
        "KV-cache events",
        "of vLLM, SGLang and others, instead of ENDPOINT (docs/kv-events.md)",
    )
    group.add_argument(
        "--kv-events", metavar="ENDPOINT", help="the publisher's endpoint: tcp://HOST:PORT"
    )
    group.add_argument("--replay", metavar="ENDPOINT", help="the endpoint that replays past events")
    group.add_argument(
        "--kv-topic", metavar="TOPIC", help="the prefix of their topic (default: any)"
    )
    if tokenizer:
        group.add_argument(
            "--tokenizer", metavar="FILE", help="the model's tokenizer.json, to show tokens as text"
        )


def find_conflict(options: argparse.Namespace, others: Sequence[str]) -> str | None:
    """Returns a sentence about options that exclude each other, or `None`.

    Args:
        others: The names of options about sequences, which exclude `--kv-events`.
    """
    own = [name for name in ("replay", "kv_topic", "tokenizer") if getattr(options, name, None)]
    if options.kv_events is None:
        return f"{_flag(own[0])} needs --kv-events" if own else None
    for name in others:
        if getattr(options, name, None):
            what = "ENDPOINT" if name == "endpoints" else _flag(name)
            return f"{what} cannot be used with --kv-events, which report blocks only"
    return None


def attach(options: argparse.Namespace) -> int:
    """Shows the cache in the app and returns the exit status."""
    from seqtop.kv.app import KvApp
    from seqtop.process import paths
    from seqtop.tui.settings import SavedState, read

    try:
        decode = None if options.tokenizer is None else token_decoder(options.tokenizer)
    except TokenizerError as error:
        return fail(str(error), status=2)
    source = _session(options)
    if not has_terminal():
        return fail(NO_TERMINAL)
    settings, problems = read(options.config or paths.config_file())
    saved = SavedState(paths.state_file())
    theme = settings.over(saved.settings).theme
    if options.ascii or settings.ascii:
        use_ascii(sys.stderr)
    with source:
        app = KvApp(source, decode=decode, theme_name=theme, problems=problems)
        status = app.run()
    return app.return_code or 0 if status is None else status


def show(options: argparse.Namespace) -> int:
    """Prints the cache as JSON and returns the exit status."""
    from seqtop.kv import json_document

    if not options.json:
        return fail("--kv-events are printed as JSON: add --json", status=2)
    if options.replay is None:
        return fail(
            "--kv-events needs --replay ENDPOINT here: the cached blocks follow from past events",
            status=2,
        )
    with _session(options) as source:
        source.await_publisher(options.timeout)
        with source.lock:
            output = json_document.encode(source.cache, source.connection).decode()
    print_document(output)
    return 0


def token_decoder(path: str) -> TokenDecoder:
    """Returns a function from token ids to text.

    Args:
        path: A `tokenizer.json`, or a folder with one.

    Raises:
        TokenizerError: The tokenizer cannot be read.
    """
    tokenizer = read_tokenizer(path)

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=False))

    return decode


def _session(options: argparse.Namespace) -> KvSession:
    from seqtop.kv.session import KvSession

    return KvSession(options.kv_events, replay=options.replay, topic=options.kv_topic or "")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
