"""The state as a JSON document for scripts (`seqtop show --json`).

Names are those of the data model. Times are epoch seconds, durations seconds, lengths tokens.
`null` means unknown or not applicable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from seqtop.export.lifecycle import RequestLifecycle, lifecycles
from seqtop.sequence import Logprob
from seqtop.state import EngineState, RequestState, SequenceState, verdict
from seqtop.state.verdict import EngineVerdict
from seqtop.text.sanitize import indented_json
from seqtop.transport.connection import Connection
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.messages import EngineInfo, MissCause, StepStats


class LimitedByDocument(msgspec.Struct):
    """The resource or setting that limits the engine, as JSON."""

    last_minute: EngineVerdict
    whole_run: EngineVerdict


class LatencyDocument(msgspec.Struct, kw_only=True):
    """The latencies of a request, as JSON; null is unknown."""

    ttft_seconds: float | None
    """From the arrival to the first token."""
    itl_seconds: float | None
    """Between two tokens, the mean."""
    e2e_seconds: float | None
    """From the arrival to the end."""
    decode_seconds: float | None
    """From the first token to the last."""
    queue_ratio: float | None
    """The share of `e2e_seconds` in the queue."""
    execute_ratio: float | None
    """The share of `e2e_seconds` in which the model ran."""
    output_tokens_per_second: float | None


class WaitDocument(msgspec.Struct):
    """The time of a request in the queue, as JSON."""

    total_seconds: float
    seconds_by_cause: dict[str, float]
    """As far as the cause is known."""
    named_seconds: float
    """The part in which the scheduler named this request, rather than one before it."""


def _with_other_fields(
    name: str, model: type[msgspec.Struct], summary: str, /, **others: Any
) -> type[msgspec.Struct]:
    """Makes a struct with the fields of a model, but for some, of which `None` leaves one out."""
    kept = [
        (field.name, field.type)
        for field in msgspec.structs.fields(model)
        if field.name not in others
    ]
    added = [(key, kind) for key, kind in others.items() if kind is not None]
    return msgspec.defstruct(
        name, [*kept, *added], kw_only=True, module=__name__, namespace={"__doc__": summary}
    )


SequenceDocument = _with_other_fields(
    "SequenceDocument",
    SequenceState,
    "A sequence, as JSON.",
    status=str,
    top_logprobs=dict[int, dict[int, Logprob]],
)
RequestDocument = _with_other_fields(
    "RequestDocument",
    RequestState,
    "A request, as JSON.",
    seq_ids=None,
    harm=None,
    harm_seconds=float | None,
    harm_estimated=None,
    harm_estimated_seconds=float,
    latency=LatencyDocument,
    wait=WaitDocument,
    sequences=list[SequenceDocument],  # type: ignore[valid-type]
)


class StateDocument(msgspec.Struct, kw_only=True):
    """The state of an engine, as JSON."""

    connection: Connection
    engine: EngineInfo | None
    step: int
    """The last step; -1 before the first."""
    time: float
    """The engine's clock, epoch seconds."""
    stats: StepStats | None
    limited_by: LimitedByDocument
    num_missed_tokens: dict[MissCause, int]
    """Tokens that were not in the prefix cache, by cause."""
    num_drafted: list[int]
    """Draft tokens that were verified, by position in the draft."""
    num_accepted: list[int]
    requests: list[RequestDocument]  # type: ignore[valid-type]


def encode(state: EngineState, connection: Connection) -> bytes:
    """Returns the document as indented UTF-8 JSON. Non-finite numbers become `null`."""
    return indented_json(document(state, connection)).encode()


def document(state: EngineState, connection: Connection) -> StateDocument:
    """Returns the document. The caller holds the lock of `state`."""
    return StateDocument(
        connection=connection,
        engine=as_object(state.info),
        step=state.step,
        time=state.time,
        stats=as_object(state.stats),
        limited_by=LimitedByDocument(verdict.of_last_minute(state), verdict.of_whole(state)),
        num_missed_tokens=state.num_missed_tokens,
        num_drafted=state.num_drafted,
        num_accepted=state.num_accepted,
        requests=[_request(lifecycle) for lifecycle in lifecycles(state)],
    )


def as_object(value: Any) -> Any:
    """Returns a value in which structs that are arrays on the wire are dictionaries."""
    if isinstance(value, Ints | Floats):
        return value.tolist()
    if isinstance(value, list):  # of numbers, as long tables of blocks are, or of structs
        return value if value and isinstance(value[0], int) else [as_object(own) for own in value]
    if isinstance(value, msgspec.Struct) and value.__struct_config__.array_like:
        return {name: as_object(own) for name, own in msgspec.structs.asdict(value).items()}
    return value


def _request(lifecycle: RequestLifecycle) -> msgspec.Struct:
    fields = _fields(lifecycle.request)
    del fields["seq_ids"]
    for name in ("harm", "harm_estimated"):
        fields[f"{name}_seconds"] = fields.pop(name)
    wait, latencies = lifecycle.wait, lifecycle.latencies()
    fields["latency"] = LatencyDocument(
        ttft_seconds=latencies["ttft"],
        itl_seconds=latencies["itl"],
        e2e_seconds=latencies["e2e_latency"],
        decode_seconds=latencies["decode_time"],
        queue_ratio=latencies["queue_ratio"],
        execute_ratio=latencies["execute_ratio"],
        output_tokens_per_second=latencies["throughput"],
    )
    fields["wait"] = WaitDocument(wait.total, wait.by_cause, wait.named)
    fields["sequences"] = [_sequence(sequence) for sequence in lifecycle.sequences]
    return RequestDocument(**fields)


def _sequence(sequence: SequenceState) -> msgspec.Struct:
    fields = _fields(sequence)
    fields["status"] = sequence.status.name
    candidates = sequence.top_logprobs
    fields["top_logprobs"] = candidates.by_place() if candidates else {}
    return SequenceDocument(**fields)


def _fields(struct: RequestState | SequenceState) -> dict[str, Any]:
    return {name: as_object(value) for name, value in msgspec.structs.asdict(struct).items()}
