"""Answers that take replays, computed once for a question that is asked in several forms."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_ANSWERS = (
    ("seqtop.whatif.predict", "predict"),
    ("seqtop.whatif.sweep", "sweep"),
    ("seqtop.whatif.sweep", "find_capacity"),
    ("seqtop.whatif.recorded_tests", "run_tests"),
)
"""The functions, each with its module. Their last argument is a function that shows progress."""


def answer_once(patch: pytest.MonkeyPatch) -> None:
    """Shares one answer among commands that differ in the form of their output alone."""
    for name, function in _ANSWERS:
        patch.setattr(f"{name}.{function}", _once(getattr(importlib.import_module(name), function)))


def _once(compute: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[str, Any] = {}

    def answer(*question: Any) -> Any:
        *asked, _ = question
        if getattr(asked[0], "output", None) is not None:  # a file is wanted, too
            return compute(*question)
        key = repr([asked, [_written(path) for path in _paths(asked[0])]])
        if key not in known:
            known[key] = compute(*question)
        return known[key]

    return answer


def _paths(asked: Any) -> list[str]:
    """Returns the paths of a list, or of a question."""
    return asked if isinstance(asked, list) else [asked.source, *asked.calibrations]


def _written(path: str) -> tuple[int, int] | None:
    """Returns what is different when a file was written again; `None` if there is no file."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
