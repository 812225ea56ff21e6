"""A finding of a check."""

from typing import Literal, TypeAlias

import msgspec

Severity: TypeAlias = Literal["error", "warning"]
"""`error` for a state that no correct engine reaches, `warning` for one that costs performance, or
for one that is judged by a threshold."""


class Finding(msgspec.Struct):
    """A violation of a rule: its place, and a sentence that describes it."""

    rule: str
    message: str
    step: int
    request_id: str | None = None
    seq_id: int | None = None
    block: int | None = None
    severity: Severity = "error"
