"""The state as a JSON document for scripts (`seqtop show --json`).

Names are those of the data model. Times are epoch seconds, durations seconds, lengths tokens.
`null` means unknown or not applicable.
"""

from typing import Any

import msgspec

from seqtop.export.lifecycle import RequestLifecycle, lifecycles
from seqtop.state import EngineState, RequestState, SequenceState, verdict
from seqtop.text.sanitize import indented_json
from seqtop.transport.connection import Connection
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.snapshot import WaitTimes


def encode(state: EngineState, connection: Connection) -> bytes:
    """Returns the document as indented UTF-8 JSON. Non-finite numbers become `null`."""
    return indented_json(document(state, connection)).encode()


def document(state: EngineState, connection: Connection) -> dict[str, Any]:
    """Returns the document as dicts and lists. The caller holds the lock of `state`."""
    return {
        "connection": {**msgspec.structs.asdict(connection), "state": connection.state.value},
        "engine": msgspec.structs.asdict(state.info) if state.info else None,
        "step": state.step,
        "time": state.time,
        "stats": msgspec.structs.asdict(state.stats) if state.stats else None,
        "limited_by": {
            "last_minute": verdict.of_last_minute(state),
            "whole_run": verdict.of_whole(state),
        },
        "num_missed_tokens": state.num_missed_tokens,
        "num_drafted": state.num_drafted,
        "num_accepted": state.num_accepted,
        "requests": [_request(lifecycle) for lifecycle in lifecycles(state)],
    }


def _request(lifecycle: RequestLifecycle) -> dict[str, Any]:
    request = lifecycle.request
    plain = _plain(request)
    del plain["seq_ids"], plain["wait"]
    return {
        **plain,
        "latency": lifecycle.latencies(),
        "wait_reason": msgspec.structs.asdict(request.wait_reason) if request.wait_reason else None,
        "wait": _wait(lifecycle.wait),
        "sequences": [_sequence(sequence) for sequence in lifecycle.sequences],
    }


def _wait(wait: WaitTimes) -> dict[str, Any]:
    """Returns the seconds in the queue: in all, by cause, and as the one named by the scheduler."""
    return {"total": wait.total, "by_cause": wait.by_cause, "named": wait.named}


def _sequence(sequence: SequenceState) -> dict[str, Any]:
    misses = sequence.prefix_misses
    return {
        **_plain(sequence),
        "status": sequence.status.name,
        "top_logprobs": sequence.top_logprobs.by_place() if sequence.top_logprobs else {},
        "prefix_misses": None if misses is None else list(map(msgspec.structs.asdict, misses)),
    }


def _plain(struct: RequestState | SequenceState) -> dict[str, Any]:
    fields = msgspec.structs.asdict(struct)
    return {
        name: value.tolist() if isinstance(value, Ints | Floats) else value
        for name, value in fields.items()
    }
