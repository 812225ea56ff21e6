"""The attributes of an engine that an adapter reads."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any


def missing_attributes(owner: Any, paths: Sequence[str]) -> list[str]:
    """Returns those of several dotted paths that an object does not have."""
    return [path for path in paths if not _has(owner, path)]


def _has(owner: Any, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True
