"""An alert, as commands and web servers receive it in JSON."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

AlertState: TypeAlias = Literal["began", "ended"]


class Alert(msgspec.Struct, kw_only=True):
    """A condition that begins to hold or ends, or something else that a flight record is about."""

    cause: str
    """`condition`, or the cause of a flight record: `failed`, `slo`, the name of a rule, …"""
    state: AlertState
    message: str
    """One sentence."""
    condition: str | None = None
    """The condition, as it was given; `None` for another cause."""
    engine_id: str
    endpoint: str
    incarnation: str
    time: float
    """The engine's clock when it began or ended, epoch seconds."""
    step: int
    """The last step; -1 before the first."""
    request_ids: list[str] = []
    """Requests that are concerned."""
    held_seconds: float | None = None
    """Seconds for which the condition held; `None` if it begins, or for another cause."""
    verdict: str = ""
    """The limit of the engine in the last minute, in one sentence."""
    recording: str | None = None
    """The path of the flight record, if there is one."""
    num_left_out: int = 0
    """Times that the condition has begun since the last alert, without one of its own."""
