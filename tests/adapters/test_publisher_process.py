"""A publisher's process that ends or stops for a while, and what cannot be sent to it."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from seqtop.adapters.observations import Arrived
from seqtop.adapters.publisher_process import encode
from seqtop.adapters.vllm import hook
from seqtop.live.session import Session
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.fake_vllm import Request, Scheduler, step, wrapped
from tests.support.waiting import SECONDS, wait_until


def test_publisher_that_dies_is_noticed(
    modules: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtop.transport.publisher_process._CHECK_SECONDS", 0.0)
    scheduler = Scheduler()
    # A folder that is not there cannot be bound.
    attachment = hook.follow(scheduler, PublisherSettings(bind="ipc:///nonexistent/socket"))
    assert attachment is not None

    def noticed() -> bool:
        scheduler.add_request(Request("one-00000000", [1, 2, 3], 1))
        step(scheduler)
        return not attachment.is_attached

    wait_until(noticed)
    assert wrapped(scheduler) == []
    assert "exit status 3" in caplog.text
    assert "seqtop attach" not in caplog.text


def test_values_that_messagepack_cannot_carry_are_replaced() -> None:
    arrived = Arrived(
        "half \ud800", 1.0, "WAITING", 2**70, 1, [1], {"seed": -(2**70), "stop": ["\udfff"]}
    )
    again = msgspec.msgpack.decode(encode(arrived), type=Arrived)
    assert again.request_id == "half \\ud800"
    assert again.priority == 2**63 - 1
    assert again.sampling_params == {"seed": -(2**63), "stop": ["\\udfff"]}
    assert again.prompt_token_ids == [1]


def children() -> set[int]:
    """The processes that this one has started and that run."""
    return {
        int(pid)
        for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    }


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are found in /proc")
def test_a_publisher_that_stops_for_a_while_leaves_a_gap(
    monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setattr("seqtop.transport.publisher_process._CHECK_SECONDS", 0.0)
    monkeypatch.setattr("seqtop.transport.publisher_process.MAX_BACKLOG", 50)
    scheduler = Scheduler()
    before = children()
    attachment = hook.follow(scheduler, PublisherSettings(bind=endpoint))
    assert attachment is not None
    (pid,) = children() - before
    with Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        os.kill(pid, signal.SIGINT)  # Ctrl-C is for the engine, and reaches both
        os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(3_000):
                scheduler.add_request(Request(f"{number}-00000000", [number] * 12, 1))
                step(scheduler)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert attachment.num_dropped > 0
        scheduler.add_request(Request("last-00000000", [1] * 12, 10**6))

        def healed() -> bool:
            step(scheduler)
            with session.lock:
                return shows_last(session)

        wait_until(healed)
        assert session.connection.num_missed > 0
        assert attachment.is_attached
    scheduler.shutdown()


def shows_last(session: Session) -> bool:
    state = session.state
    unfinished = [request for request in state.requests.values() if request.finish_reason is None]
    return [request.request_id for request in unfinished] == ["last"] and state.num_anomalies == 0
