"""The JSON document, of a state with unusual values."""

import json

import pytest

from seqtop.export import json_document
from seqtop.live.connection import Connection, ConnectionState
from seqtop.state import EngineState
from seqtop.wire.messages import PrefixMiss, SequenceUpdate
from tests.support.awkward_state import NASTY, awkward_state
from tests.support.reducer_events import RUNNING, arrived, step


@pytest.fixture
def state() -> EngineState:
    return awkward_state()


def test_json_is_valid_and_holds_the_figures(state: EngineState) -> None:
    connection = Connection("ipc:///x", ConnectionState.LIVE)
    encoded = json_document.encode(state, connection)
    assert b"\x1b" not in encoded
    shown = json.loads(encoded)
    assert shown["connection"]["state"] == "live"
    assert shown["engine"] is None
    assert shown["stats"]["num_waiting"] == 2
    assert shown["stats"]["model_forward_time"] is None  # not a number, so not in JSON either
    assert shown["stats"]["num_swapped"] is None
    first = shown["requests"][0]
    assert first["request_id"] == "req-0"
    assert first["latency"]["ttft"] is None
    assert first["sequences"][0]["text"] == NASTY * 3
    assert first["sequences"][0]["status"] == "RUNNING"
    assert [request["request_id"] for request in shown["requests"]][2] == "evil\x1b[31m"


def test_prefix_misses_are_objects_and_their_totals_are_in_the_document() -> None:
    state = EngineState()
    state.apply(arrived("a", 1))
    miss = PrefixMiss(cause="evicted", num_tokens=16, step=3, request_id="b")
    update = SequenceUpdate(seq_id=1, status=RUNNING, num_computed_tokens=16, prefix_misses=[miss])
    state.apply(step(4, sequences=[update]))
    shown = json.loads(json_document.encode(state, Connection("x", ConnectionState.LIVE)))
    assert shown["num_missed_tokens"] == {"evicted": 16}
    assert shown["requests"][0]["sequences"][0]["prefix_misses"] == [
        {"cause": "evicted", "num_tokens": 16, "step": 3, "request_id": "b"}
    ]
