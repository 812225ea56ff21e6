"""The options by which commands read a trace."""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqtop.process.argparse_ext import positive, positive_integer

if TYPE_CHECKING:
    from seqtop.whatif.traces import Trace


def add_trace_options(parser: argparse.ArgumentParser, *, has_scale: bool = True) -> None:
    """Adds the options of traces.

    Args:
        parser: The command's parser.
        has_scale: Adds `--scale-arrivals`, which a command may have for recordings, too.
    """
    trace = parser.add_argument_group(
        "traces",
        "A trace has the arrivals and lengths of requests: Mooncake's or AIPerf's JSON lines,"
        " Azure's or BurstGPT's CSV, conversations of ShareGPT, or a result of vllm bench serve"
        " --save-detailed.",
    )
    trace.add_argument(
        "--limit", type=positive_integer, metavar="N", help="the first N requests only"
    )
    trace.add_argument(
        "--request-rate",
        type=positive,
        metavar="RATE",
        help="requests per second, at exponential distances, for a trace without times",
    )
    if has_scale:
        trace.add_argument(
            "--scale-arrivals",
            type=positive,
            default=1.0,
            metavar="FACTOR",
            help="requests arrive this many times as fast",
        )
    trace.add_argument(
        "--scale-lengths",
        type=positive,
        default=1.0,
        metavar="FACTOR",
        help="prompts and outputs are longer by this factor",
    )


def read_trace(
    path: str,
    *,
    tokenizer: str | Path | None,
    request_rate: float | None = None,
    limit: int | None = None,
    scale_arrivals: float = 1.0,
    scale_lengths: float = 1.0,
) -> Trace:
    """Reads a trace as the options of `add_trace_options` say.

    Args:
        path: The file.
        tokenizer: A `tokenizer.json` or its folder, for traces with texts; `None` without one.
        request_rate: Requests per second of a trace without times.
        limit: The number of its first requests that are taken; `None` for all.
        scale_arrivals: Requests arrive this many times as fast.
        scale_lengths: The factor by which prompts and outputs are longer.

    Raises:
        TraceError: It is no trace.
        TokenizerError: The tokenizer cannot be read.
        OSError: The file cannot be read.
    """
    from seqtop.text.tokenizer_file import read_tokenizer
    from seqtop.whatif import traces

    @cache
    def tokenizer_of(path: str | Path) -> Any:
        return read_tokenizer(path)

    def tokenize(text: str) -> list[int]:
        assert tokenizer is not None
        return list(tokenizer_of(tokenizer).encode(text).ids)

    trace = traces.read(
        path,
        tokenize=None if tokenizer is None else tokenize,
        request_rate=request_rate,
    )
    return trace.scaled(limit=limit, arrivals=scale_arrivals, lengths=scale_lengths)
