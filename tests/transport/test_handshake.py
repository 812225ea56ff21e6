"""Joining: versions, and snapshots that are refused."""

from collections.abc import Callable

import pytest

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.connection import ConnectionState
from seqtop.wire import codec
from seqtop.wire.messages import Refused
from tests.support.events import arrival
from tests.support.hand_driven import HandDrivenEngine, same
from tests.support.waiting import SECONDS, wait_until


def test_snapshot_of_another_version_is_refused(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.answer([b"seqtop/1/one", *engine.reply()[1:]])
        wait_until(lambda: session.connection.num_errors == 1)
        assert "version 1 of the seqtop protocol" in session.connection.last_error
        engine.answer()  # the viewer repeats the request
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)


def test_a_refused_request_for_a_snapshot(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.answer(Refused(error="no snapshots today"))
        assert session.wait_for(ConnectionState.INCOMPATIBLE, timeout=SECONDS)
        assert session.connection.detail == "no snapshots today"


@pytest.mark.parametrize(
    "contradict",
    [
        lambda state: state.requests["req-1"].spans.clear(),
        lambda state: state.finished.append("req-2"),
        lambda state: state.finished.append("req-1"),
        lambda state: setattr(state.requests["req-1"], "finish_reason", "stop"),
    ],
)
def test_snapshot_that_contradicts_itself_is_refused(
    endpoint: str, contradict: Callable[[EngineState], object]
) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send(arrival(1))
        good = codec.decode(codec.encode(engine.state), EngineState)
        contradict(engine.state)
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
        engine.answer(engine.pack_reply(b"\x93\x01\x02\x03"))
        wait_until(lambda: session.connection.num_errors == 1)
        assert session.connection.state is ConnectionState.CONNECTING
