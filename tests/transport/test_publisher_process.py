"""The connection between an engine's process and its publisher's."""

import threading
from pathlib import Path

import pytest
import zmq

from seqtop.transport import publisher_process
from seqtop.transport.publisher_process import EngineConnection, address_in
from tests.support.waiting import SECONDS


def test_a_state_is_requested_again_only_after_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is a gap for viewers, which an engine that is slow to answer must not double."""
    monkeypatch.setattr(publisher_process, "_SECONDS_BETWEEN_REQUESTS", 0.0)
    context = zmq.Context()
    engine = context.socket(zmq.PAIR)
    engine.rcvtimeo = int(1000 * SECONDS)
    engine.connect(address_in(str(tmp_path)))
    with EngineConnection(str(tmp_path), threading.Event()) as connection:
        engine.send(b"a step")
        assert next(iter(connection)) == b"a step"
        connection.request_state()
        connection.request_state()
        connection.send(b"first")
        connection.state_came()
        connection.request_state()
        connection.send(b"last")
        assert [engine.recv() for _ in range(4)] == [b"", b"first", b"", b"last"]
    context.destroy(linger=0)
