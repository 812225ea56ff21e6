"""Columns and figures that an engine cannot give, and the reasons (`EngineInfo.not_available`)."""

from collections.abc import Mapping
from itertools import islice

from seqtop.state.fields import FIELDS
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line

REQUESTS = "requests"
"""The key of everything: the adapter of the engine cannot observe its version."""

FIGURES = {
    REQUESTS: "requests",
    "cached_blocks": "cached blocks",
    "blocks_of_requests": "blocks in use by requests",
    "prefix_misses": "causes of prefix misses",
    "cuda_graph": "CUDA graphs",
    "encoder": "encoder budget",
    "parents": "requests that samples belong to",
    "priority": "priorities",
    "end": "cause of the engine's end",
    "finish_reason": "how a request ended",
    "token_budget": "token budget of a step",
}
"""Figures that are no columns, by key."""

_MAX_LISTED = 100


def entries(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the title of each column or figure, and the reason why it is not available.

    Args:
        reasons: `EngineInfo.not_available`.
    """
    return [
        (safe_line(_title(key)), safe_line(reason))
        for key, reason in islice(reasons.items(), _MAX_LISTED)
    ]


def by_reason(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns each reason once, after the titles of all columns and figures that it is for."""
    titles: dict[str, list[str]] = {}
    for title, reason in entries(reasons):
        titles.setdefault(reason, []).append(title)
    return [(", ".join(group), reason) for reason, group in titles.items()]


def describe(reasons: Mapping[str, str]) -> str:
    """Returns a line with all columns and figures that are not available, and the reasons."""
    listed = "; ".join(f"{titles} ({reason})" for titles, reason in by_reason(reasons))
    return f"not available: {listed}"


def columns(reasons: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys that concern the columns of a table of sequences, and their reasons."""
    return {key: reason for key, reason in reasons.items() if key in FIELDS or key == REQUESTS}


def count(number: float | None) -> str:
    """Formats a count that is `None` if the engine cannot give it."""
    return fmt.NOT_AVAILABLE if number is None else fmt.count(number)


def _title(key: str) -> str:
    return FIELDS[key].title if key in FIELDS else FIGURES.get(key, key)
