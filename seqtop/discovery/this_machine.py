"""The engines of this user on this machine that publish."""

from __future__ import annotations

from collections.abc import Iterable

from seqtop.discovery import Found, PolledDiscovery
from seqtop.transport import local_engines


class ThisMachine(PolledDiscovery):
    """Finds the user's engines on this machine. Dormant ones are left alone."""

    def __init__(self) -> None:
        super().__init__("this machine")

    def explain_none(self) -> str:
        """Returns a sentence on why no engine was found."""
        return "no engine of yours publishes on this machine"

    def _find(self) -> Iterable[Found]:
        return (Found("", engine.endpoint) for engine in local_engines.find() if engine.endpoint)
