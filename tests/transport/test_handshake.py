"""Joining: versions, and snapshots that are refused."""

from collections.abc import Callable

import msgspec
import pytest

from seqtop.live.connection import ConnectionState
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.wire import codec
from seqtop.wire.messages import Refused
from tests.support.hand_driven import HandDrivenEngine, arrival, same
from tests.support.waiting import SECONDS, wait_until


def test_snapshot_of_another_version_is_refused(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.answer(engine.snapshot(protocol_version=1, sequence_number=0))
        wait_until(lambda: session.connection.num_errors == 1)
        assert "version 1 of the protocol" in session.connection.last_error
        engine.answer()  # the viewer repeats the request
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)


def test_other_version_on_the_snapshot_socket(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.answer(Refused(error="this engine uses version 2"))
        assert session.wait_for(ConnectionState.INCOMPATIBLE, timeout=SECONDS)
        assert session.connection.detail == "this engine uses version 2"


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.requests["req-1"].seq_ids.append(99),
        lambda state: state.requests["req-1"].seq_ids.append(1),
        lambda state: state.requests["req-1"].spans.clear(),
        lambda state: state.sequences.clear(),
        lambda state: state.finished.append("unknown"),
        lambda state: state.finished.append("req-1"),
        lambda state: setattr(state.requests["req-1"], "finish_reason", "stop"),
        lambda state: state.num_by_status.append(1),
    ],
)
def test_snapshot_that_contradicts_itself_is_refused(
    endpoint: str, damage: Callable[[EngineState], object]
) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send(arrival(1))
        good = codec.decode(codec.encode(engine.state), EngineState)
        damage(engine.state)
        engine.answer()
        wait_until(lambda: session.connection.num_errors == 1)
        assert "snapshot:" in session.connection.last_error
        assert session.state.requests == {}
        engine.state = good
        engine.answer()  # the viewer asks again by itself
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert same(session.state, good)


def test_snapshot_of_garbage_is_refused(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        garbage = msgspec.Raw(b"\x93\x01\x02\x03")
        engine.answer(engine.snapshot(sequence_number=0, state=garbage))
        wait_until(lambda: session.connection.num_errors == 1)
        assert session.connection.state is ConnectionState.CONNECTING
