"""What `attach` and `show` do with `--kv-events`: a publisher of KV-cache events in the place of
an engine that speaks seqtop's protocol."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seqtop.cli.common import NO_TERMINAL, fail, has_terminal

if TYPE_CHECKING:
    from seqtop.kv_events.session import KvSession
    from seqtop.tui.screens.kv.feed import Decode


class TokenizerError(Exception):
    """The tokenizer cannot be read; `str()` is one sentence for the user."""


def add(parser: argparse.ArgumentParser, *, tokenizer: bool) -> None:
    """The options; `tokenizer` for a command that shows tokens as text."""
    group = parser.add_argument_group(
        "KV-cache events",
        "of vLLM, SGLang and others, in the place of ENDPOINT (docs/kv-events.md)",
    )
    group.add_argument(
        "--kv-events", metavar="ENDPOINT", help="where they are published: tcp://HOST:PORT"
    )
    group.add_argument(
        "--replay", metavar="ENDPOINT", help="where the publisher answers for those gone by"
    )
    group.add_argument(
        "--kv-topic", metavar="TOPIC", help="what their topic begins with (default: any)"
    )
    if tokenizer:
        group.add_argument(
            "--tokenizer", metavar="FILE", help="the model's tokenizer.json, to show tokens as text"
        )


def mistake(options: argparse.Namespace, others: Sequence[str]) -> str | None:
    """What does not go together; `others` are the options that tell of sequences."""
    own = [name for name in ("replay", "kv_topic", "tokenizer") if getattr(options, name, None)]
    if options.kv_events is None:
        return f"{_flag(own[0])} goes with --kv-events" if own else None
    for name in others:
        if getattr(options, name, None):
            what = "ENDPOINT" if name == "endpoints" else _flag(name)
            return f"{what} does not go with --kv-events, which tell of blocks alone"
    return None


def attach(options: argparse.Namespace) -> int:
    from seqtop import paths
    from seqtop.tui.screens.kv.app import KvApp
    from seqtop.tui.settings import SavedState, read

    try:
        decode = None if options.tokenizer is None else tokenizer(options.tokenizer)
    except TokenizerError as error:
        return fail(str(error), status=2)
    source = session(options)
    if not has_terminal():
        return fail(NO_TERMINAL)
    written, problems = read(options.config or paths.config_file())
    memory = SavedState(paths.memory_file())
    theme = written.over(memory.settings).theme
    with source:
        app = KvApp(source, decode=decode, theme_name=theme, problems=problems)
        status = app.run()
    return app.return_code or 0 if status is None else status


def show(options: argparse.Namespace) -> int:
    from seqtop.export import kv_json

    if not options.json:
        return fail("--kv-events are shown as JSON: add --json", status=2)
    if options.replay is None:
        return fail("--kv-events tell what is cached only with --replay ENDPOINT", status=2)
    with session(options) as source:
        source.await_publisher(options.timeout)
        with source.lock:
            output = kv_json.encode(source.cache, source.link).decode()
    print(output)
    return 0


def session(options: argparse.Namespace) -> KvSession:
    from seqtop.kv_events.session import KvSession

    return KvSession(options.kv_events, replay=options.replay, topic=options.kv_topic or "")


def tokenizer(path: str) -> Decode:
    """What makes text of tokens.

    Raises:
        TokenizerError: it cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError(
            "--tokenizer needs the package tokenizers: pip install tokenizers"
        ) from error
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        read = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain ones
        raise TokenizerError(f"the tokenizer {path!r} cannot be read: {error}") from error

    def decode(token_ids: Sequence[int]) -> str:
        return str(read.decode(list(token_ids), skip_special_tokens=False))

    return decode


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
