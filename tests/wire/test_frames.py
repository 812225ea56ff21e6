"""Frames of another version, of another protocol, or damaged are refused."""

from typing import Any

import pytest

from seqtop.live.connection import ConnectionState
from seqtop.live.session import Session
from seqtop.wire import codec, frames
from tests.support.hand_driven import HandDrivenEngine, arrival, joined
from tests.support.waiting import SECONDS, wait_until


def test_message_damaged_on_the_way_is_refused_though_it_could_be_read(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        spoilt = frames.pack("one", engine.next_number, codec.encode(arrival(1)))
        spoilt[2] = codec.encode(arrival(2))
        engine.state.apply(arrival(1))
        engine.next_number += 1
        engine.send_frames(spoilt)
        wait_until(lambda: session.connection.num_errors == 1)
        assert "its checksum is wrong" in session.connection.last_error
        engine.send(arrival(3))  # shows that one is missing
        engine.answer()
        wait_until(lambda: "req-3" in session.state.requests)
        assert "req-1" in session.state.requests
        assert "req-2" not in session.state.requests


@pytest.mark.parametrize("version", [1, 3])
def test_other_version_on_the_live_stream(endpoint: str, version: int) -> None:
    with HandDrivenEngine(endpoint, welcomes=False) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send_frames([b"seqtop/%d/one" % version, bytes(8), b"whatever"])
        assert session.wait_for(ConnectionState.INCOMPATIBLE, timeout=SECONDS)
        assert f"uses version {version} of the seqtop protocol" in session.connection.detail
        assert "this viewer version 2" in session.connection.detail


@pytest.mark.parametrize(
    "parts",
    [
        [b"random bytes"],
        [b"kv-events", bytes(8), b"\x93\x01\x02\x03"],
        [b"seqtop/2/one", b"short", b""],
        [b"seqtop/x/one", bytes(8), b""],
        [b"seqtop/2/\xff", bytes(8), b""],
        [b"\x00" * 1000, bytes(8), b""],
    ],
)
def test_foreign_publisher(endpoint: str, parts: list[Any]) -> None:
    with HandDrivenEngine(endpoint, welcomes=False) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send_frames(parts)
        assert session.wait_for(ConnectionState.INCOMPATIBLE, timeout=SECONDS)
        assert "does not send a seqtop stream" in session.connection.detail
        assert session.connection.num_errors == 1
