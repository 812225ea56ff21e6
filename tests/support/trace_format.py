"""The Trace Event Format as types, from its specification: what seqtop writes of it, no more.

Decoding with these is a schema check: an unknown phase, a missing field or one too many fails.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

Microseconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Id: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class TraceEvent(msgspec.Struct, tag_field="ph", forbid_unknown_fields=True, kw_only=True):
    name: str
    pid: Id
    tid: Id
    ts: Microseconds


class Begin(TraceEvent, tag="B"):
    args: dict[str, Any] = {}


class End(TraceEvent, tag="E"):
    pass


class Instant(TraceEvent, tag="i"):
    s: Literal["g", "p", "t"]
    args: dict[str, Any] = {}


class CounterSample(TraceEvent, tag="C"):
    args: dict[str, int]


class Name(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class Metadata(TraceEvent, tag="M"):
    name: Literal["process_name", "thread_name"]
    args: Name


class OtherData(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    start_time: float
    engine: str | None
    model: str | None


class Trace(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    display_time_unit: Literal["ms", "ns"]
    other_data: OtherData
    trace_events: list[Begin | End | Instant | CounterSample | Metadata]


def read(data: bytes) -> Trace:
    """Raises `msgspec.ValidationError` if `data` is not of the format."""
    return msgspec.json.decode(data, type=Trace)
