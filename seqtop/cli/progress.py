"""The progress of commands that take longer than a second, on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from seqtop.history.replay import ShowProgress

_SILENT_SECONDS = 1.0
"""Seconds without any progress: what takes no longer needs none."""


@contextmanager
def shown_progress(description: str) -> Iterator[ShowProgress]:
    """Yields a function that shows which part is done, on standard error if that is a terminal.

    Args:
        description: A few words on what is done.
    """
    if not sys.stderr.isatty():
        yield lambda _share: None
        return
    begun = time.monotonic()
    bar: Progress | None = None

    def show(share: float) -> None:
        nonlocal bar
        if bar is None and time.monotonic() - begun >= _SILENT_SECONDS:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bar.add_task(description, total=1.0)
            bar.start()
        if bar is not None:
            bar.update(bar.task_ids[0], completed=min(share, 1.0))

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()
