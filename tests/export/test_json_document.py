"""The JSON document, of a state with unusual values."""

import json

import pytest

from seqtop.connection import Connection, ConnectionState
from seqtop.export import json_document
from seqtop.state import EngineState
from tests.support.awkward_state import NASTY, awkward_state


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
