"""Sentences about findings of the checks, for notices and for the detail of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from seqtop.text import format as fmt

if TYPE_CHECKING:
    from seqtop.checks.background import LocatedFinding


def sentence(findings: Sequence[LocatedFinding]) -> str:
    """Returns a sentence about the findings at one moment."""
    first = findings[0].finding
    more = (
        f" (and {fmt.plural(len(findings) - 1, 'more finding')} here)" if len(findings) > 1 else ""
    )
    request = f" of {first.request_id}" if first.request_id is not None else ""
    return f"Check {first.rule} failed{request}: {first.message}{more}."


def sequence_sentence(findings: Sequence[LocatedFinding]) -> str:
    """Returns a sentence on the newest of the findings about a sequence; empty without any."""
    if not findings:
        return ""
    newest = max(findings, key=attrgetter("position")).finding
    more = f" ({fmt.plural(len(findings) - 1, 'other finding')})" if len(findings) > 1 else ""
    name = newest.severity.capitalize()
    return f"{name} {newest.rule} at step {newest.step:,}: {newest.message}{more}."
