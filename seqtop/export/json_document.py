"""The state as a JSON document for scripts (`seqtop show --json`).

Names are those of the data model. Times are epoch seconds, durations seconds, lengths tokens.
`null` means unknown or not applicable, never zero.
"""

from typing import Any

import msgspec

from seqtop.connection import Connection
from seqtop.sanitize import safe_json
from seqtop.sequence import latency
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.wire.columns import Floats, Ints


def encode(state: EngineState, link: Connection) -> bytes:
    """The document as indented UTF-8 JSON. Non-finite figures become `null`."""
    plain = msgspec.json.format(msgspec.json.encode(document(state, link)), indent=2)
    return safe_json(plain.decode()).encode()


def document(state: EngineState, link: Connection) -> dict[str, Any]:
    """The document as plain dicts and lists; hold the lock of `state` meanwhile."""
    return {
        "link": {**msgspec.structs.asdict(link), "state": link.state.value},
        "engine": msgspec.structs.asdict(state.info) if state.info else None,
        "step": state.step,
        "time": state.time,
        "stats": msgspec.structs.asdict(state.stats) if state.stats else None,
        "requests": [_request(state, request) for request in state.requests.values()],
    }


def _request(state: EngineState, request: RequestState) -> dict[str, Any]:
    plain = _plain(request)
    del plain["seq_ids"]
    sequences = [state.sequences[seq_id] for seq_id in request.seq_ids]
    num_output_tokens = sum(len(sequence.output_token_ids) for sequence in sequences)
    metrics = request.metrics
    return {
        **plain,
        "latency": {
            "ttft": latency.ttft(metrics),
            "itl": latency.itl(metrics, num_output_tokens),
            "e2e_latency": latency.e2e_latency(metrics),
            "decode_time": latency.decode_time(metrics),
            "queue_ratio": latency.queue_ratio(metrics),
            "execute_ratio": latency.execute_ratio(metrics),
            "throughput": latency.throughput(metrics, num_output_tokens),
        },
        "wait_reason": msgspec.structs.asdict(request.wait_reason) if request.wait_reason else None,
        "sequences": [_sequence(sequence) for sequence in sequences],
    }


def _sequence(sequence: SequenceState) -> dict[str, Any]:
    return {**_plain(sequence), "status": sequence.status.name}


def _plain(struct: RequestState | SequenceState) -> dict[str, Any]:
    fields = msgspec.structs.asdict(struct)
    return {
        name: value.tolist() if isinstance(value, Ints | Floats) else value
        for name, value in fields.items()
    }
