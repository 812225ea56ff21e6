"""Frames of another version, of another protocol, or damaged are refused."""

from typing import Any

import pytest

from seqtop.live.session import Session
from seqtop.transport.connection import ConnectionState
from seqtop.wire.frames import ForeignMessageError, unpack_reply
from tests.support.hand_driven import HandDrivenEngine
from tests.support.waiting import SECONDS


@pytest.mark.parametrize("version", [2, 4])
def test_other_version_on_the_live_stream(endpoint: str, version: int) -> None:
    with HandDrivenEngine(endpoint, welcomes=False) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send_frames([b"seqtop/%d/one" % version, bytes(8), b"whatever"])
        assert session.wait_for(ConnectionState.INCOMPATIBLE, timeout=SECONDS)
        assert f"uses version {version} of the seqtop protocol" in session.connection.detail
        assert "this viewer version 3" in session.connection.detail


@pytest.mark.parametrize(
    "parts",
    [
        [b"random bytes"],
        [b"kv-events", bytes(8), b"\x93\x01\x02\x03"],
        [b"seqtop/3/one", b"short", b""],
        [b"seqtop/x/one", bytes(8), b""],
        [b"seqtop/3/\xff", bytes(8), b""],
        [b"\x00" * 1000, bytes(8), b""],
        [b"seqtop/3/one", bytes(8)],
        [b"seqtop/3/one", bytes(8), b"", b"one too many"],
    ],
)
def test_foreign_publisher(endpoint: str, parts: list[Any]) -> None:
    with HandDrivenEngine(endpoint, welcomes=False) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send_frames(parts)
        assert session.wait_for(ConnectionState.INCOMPATIBLE, timeout=SECONDS)
        assert "does not send a seqtop stream" in session.connection.detail
        assert session.connection.num_errors == 1


@pytest.mark.parametrize("num_frames", [0, 1, 2, 4])
def test_reply_has_three_frames(num_frames: int) -> None:
    parts = [b"seqtop/3/one", bytes(8), b"", b"one too many"][:num_frames]
    with pytest.raises(ForeignMessageError, match=f"got {num_frames} frames"):
        unpack_reply([memoryview(part) for part in parts])
