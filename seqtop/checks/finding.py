"""A finding of a check."""

import msgspec


class Finding(msgspec.Struct):
    """A violation of a rule: its place, and a sentence that describes it."""

    rule: str
    message: str
    step: int
    request_id: str | None = None
    seq_id: int | None = None
    block: int | None = None
