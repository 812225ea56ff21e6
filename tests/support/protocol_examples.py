"""The files of `docs/golden/`: messages of the protocol, and streams with their states."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgpack
import msgspec

from docs.make_protocol import fields_of
from seqtop.sequence import ExecuteModelRequest, SequenceStatus
from seqtop.state import EngineState, snapshot
from seqtop.wire import codec
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import Command, Event, Step
from seqtop.wire.snapshot import Reply
from tests.support import events
from tests.support.layouts import Values
from tests.support.stored_run import MISSED, scripts

FOLDER = Path(__file__).parents[2] / "docs" / "golden"
_WIDTHS = {"b": 1, "h": 2, "i": 4, "q": 8, "f": 4, "d": 8}
"""The bytes of a number of each type of packed array."""


def files() -> dict[str, bytes]:
    """Returns the content of each file by its path in the folder."""
    content: dict[str, bytes] = {}
    for name, payload in _messages():
        content[f"messages/{name}.msgpack"] = payload
        content[f"messages/{name}.json"] = _pretty(plain(payload))
    for name, script in scripts().items():
        state, payloads, states = EngineState(max_finished=0), [], []
        for number, event in enumerate(script):
            payloads.append(codec.encode(event))
            state.apply(codec.decode(payloads[-1], type(event)))
            assert not state.num_anomalies, state.last_anomaly
            states.append(_line(_state(state)))
            if number == MISSED:
                joined = codec.encode(snapshot.take(state))
                content[f"streams/{name}.snapshot.msgpack"] = joined
                content[f"streams/{name}.snapshot.json"] = _pretty(plain(joined))
        content[f"streams/{name}.msgpack"] = b"".join(payloads)
        content[f"streams/{name}.jsonl"] = b"".join(_line(plain(payload)) for payload in payloads)
        content[f"streams/{name}.states.jsonl"] = b"".join(states)
    return content


def stored() -> dict[str, bytes]:
    """Returns the stored files by their paths in the folder."""
    return {
        str(path.relative_to(FOLDER)): path.read_bytes()
        for folder in ("messages", "streams")
        for path in (FOLDER / folder).glob("*")
    }


def write(content: dict[str, bytes]) -> None:
    """Stores the files in place of those that there are."""
    for folder in ("messages", "streams"):
        shutil.rmtree(FOLDER / folder, ignore_errors=True)
        (FOLDER / folder).mkdir(parents=True)
    for name, data in content.items():
        (FOLDER / name).write_bytes(data)


def plain(payload: bytes) -> Any:
    """Returns a message as JSON has it, decoded by a library that knows nothing of seqtop."""
    return _plain(msgpack.unpackb(payload, strict_map_key=False, ext_hook=_numbers))


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return _numbers(ord("q"), value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
    return value


def _numbers(code: int, data: bytes) -> list[int] | list[float]:
    width = _WIDTHS[chr(code)]
    return list(struct.unpack(f"<{len(data) // width}{chr(code)}", data))


def _messages() -> Iterator[tuple[str, bytes]]:
    """Yields each message with all of its fields, with the required ones, and in further forms."""
    for cls in dict.fromkeys([*get_args(Event), *get_args(Command), *get_args(Reply)]):
        payload = codec.encode(Values().instance(cls))
        yield cls.__name__, payload
        yield from _required(cls, payload)
    step = Values().instance(Step)
    metadata = ExecuteModelRequest([events.full("text 1", 7, chunk=3, block_tables={7: [2]})])
    yield "Step-metadata", codec.encode(msgspec.structs.replace(step, execute=metadata))
    yield "Step-without-execute", codec.encode(msgspec.structs.replace(step, execute=None))
    for code in "bhiq":
        arrival = msgspec.structs.replace(events.arrival(1), prompt_token_ids=Ints(code, [0, 127]))
        yield f"RequestArrived-packed-{code}", codec.encode(arrival)


def _required(cls: type, payload: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields a message without the fields that have defaults, if there are any."""
    whole = msgpack.unpackb(payload, strict_map_key=False)
    num_required = 1 + sum(field.required for field in fields_of(cls))
    if num_required < len(whole):
        yield f"{cls.__name__}-required", msgpack.packb(whole[:num_required])


def _state(state: EngineState) -> dict[str, Any]:
    """Returns what a viewer knows: the requests that have not ended, and their sequences."""
    requests = {
        request_id: {
            "seq_ids": request.seq_ids,
            "num_prompt_tokens": request.num_prompt_tokens,
            "metrics": msgspec.to_builtins(request.metrics),
        }
        for request_id, request in state.requests.items()
    }
    names = """request_id status num_computed_tokens num_cached_tokens num_external_tokens
        block_table group_block_tables engine_status stop_reason num_draft_tokens
        num_accepted_tokens output_token_ids text""".split()
    sequences = {
        str(seq_id): {name: _json(getattr(sequence, name)) for name in names}
        for seq_id, sequence in state.sequences.items()
    }
    cached = None
    if state.cached_blocks is not None:
        cached = {
            str(block): [entry.request_id, entry.seq_id, entry.position]
            for block, entry in state.cached_blocks.items()
        }
    return {
        "step": state.step,
        "time": state.time,
        "stopped": state.stopped is not None,
        "requests": requests,
        "sequences": sequences,
        "cached_blocks": cached,
    }


def _json(value: Any) -> Any:
    if isinstance(value, Ints):
        return list(value)
    return int(value) if isinstance(value, SequenceStatus) else value


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def _line(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()
