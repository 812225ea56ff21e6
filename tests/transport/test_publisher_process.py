"""The connection between an engine's process and its publisher's."""

import os
import sys
import threading
from pathlib import Path

import psutil
import pytest
import zmq

from seqtop.transport import publisher_process
from seqtop.transport.publisher_process import EngineConnection, PublisherProcess, address_in
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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such policy")
def test_no_thread_that_publishes_takes_the_core_of_the_engine_s_thread() -> None:
    before = psutil.Process().threads()
    publisher = PublisherProcess("engine_stub.entrypoints.publisher_main")
    try:
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
        started = {thread.id for thread in psutil.Process().threads()} - {
            thread.id for thread in before
        }
        assert {os.sched_getscheduler(id_) for id_ in started} == {os.SCHED_BATCH}
        child = psutil.Process(publisher._process.pid)
        assert {os.sched_getscheduler(thread.id) for thread in child.threads()} == {os.SCHED_BATCH}
    finally:
        publisher.close(b"")


def test_a_sandbox_may_forbid_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden, raising=False)  # it is Linux's
    publisher = PublisherProcess("engine_stub.entrypoints.publisher_main")
    assert publisher.is_running
    publisher.close(b"")
