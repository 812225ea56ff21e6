"""A session: its state after gaps and restarts."""

import threading
import weakref

import msgspec
import pytest

from seqtop.history import segments
from seqtop.history.keyframe import EncodedKeyframe, KeyframeEncoder
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import EndpointError
from seqtop.wire.messages import RequestFinished
from seqtop.wire.snapshot import SnapshotPart
from tests.support.events import arrival, engine_info, engine_snapshot
from tests.support.hand_driven import HandDrivenEngine, joined, same
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until


@pytest.mark.usefixtures("collector_off")
def test_a_session_that_is_over_leaves_nothing_behind(endpoint: str) -> None:
    def followed() -> weakref.ref[Session]:
        with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
            joined(engine, session)
            return weakref.ref(session)

    assert followed()() is None


def test_the_app_can_draw_while_a_keyframe_of_the_history_is_encoded(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a tenth of a second for 10,000 sequences."""
    can_draw: list[bool] = []

    def draw(session: Session) -> None:
        for lock in (session.lock, session.history.lock):
            is_free = lock.acquire(timeout=1.0)
            can_draw.append(is_free)
            if is_free:
                lock.release()

    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        encode = KeyframeEncoder.encode

        def encoded(self: KeyframeEncoder, state: EngineState) -> EncodedKeyframe:
            app = threading.Thread(target=draw, args=(session,))
            app.start()
            app.join()
            return encode(self, state)

        monkeypatch.setattr(segments, "SEGMENT_BYTES", 0)
        monkeypatch.setattr(KeyframeEncoder, "encode", encoded)
        engine.send(engine_info())
        for number in range(1, 9):
            engine.send(arrival(number))
        wait_until(lambda: session.sequence_number == 8)
    assert can_draw
    assert all(can_draw)


def test_restarted_engine_is_followed(endpoint: str) -> None:
    with Session(endpoint) as session:
        with HandDrivenEngine(endpoint) as engine:
            joined(engine, session)
            engine.send(engine_info())
            engine.send(arrival(1))
            wait_until(lambda: session.sequence_number == 1)
        with HandDrivenEngine(endpoint, incarnation="two") as engine:
            engine.await_viewer()
            engine.send(engine_info(incarnation="two"))
            engine.send(arrival(7))
            engine.answer()
            wait_until(lambda: same(session.state, engine.state))
        assert session.connection.num_resyncs == 1


def test_an_engine_that_was_left_is_not_followed_until_it_is_asked_for(endpoint: str) -> None:
    """Its address may be another engine's by now."""
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        wait_until(lambda: session.sequence_number == 0)
        session.leave("it is gone")
        wait_until(lambda: session.connection.state is ConnectionState.LOST)
        assert session.connection.detail == "it is gone"
        assert engine.live.poll(MILLISECONDS)
        assert engine.live.recv() == b"\x00"  # it has unsubscribed
        engine.send(arrival(1))
        session.follow(endpoint)
        engine.await_viewer()
        assert not session.state.requests
        engine.send(arrival(2))
        engine.answer()
        wait_until(lambda: session.connection.state is ConnectionState.LIVE)
        assert same(session.state, engine.state)


def test_a_session_refuses_to_follow_what_is_no_endpoint(endpoint: str) -> None:
    with Session(endpoint) as session, pytest.raises(EndpointError):
        session.follow("nowhere")


def test_every_part_of_a_snapshot_is_redacted(endpoint: str) -> None:
    truth = EngineState()
    for event in (engine_info(), arrival(1), arrival(2)):
        truth.apply(event)
    whole = engine_snapshot(truth)
    session = Session(endpoint, redact=True)
    session.load(msgspec.structs.replace(whole, requests=whole.requests[:1]))
    session.load(SnapshotPart(index=0, is_last=True, requests=whole.requests[1:]))
    session.restore("one", 0)
    assert [request.prompt for request in session.state.requests.values()] == [None, None]


def test_history_survives_a_resync_that_has_forgotten_it(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        engine.send(arrival(1))
        request = engine.state.requests["req-1"]
        ended = RequestFinished(
            request_id="req-1",
            time=9.0,
            status=SequenceStatus.FINISHED_ABORTED,
            metrics=msgspec.json.decode(
                msgspec.json.encode(request.metrics), type=type(request.metrics)
            ),
        )
        engine.send(ended)
        wait_until(lambda: session.sequence_number == 2)
        engine.state = EngineState()
        engine.state.apply(engine_info())
        engine.send(arrival(2), lose=True)
        engine.send(arrival(3))
        wait_until(lambda: session.connection.state is ConnectionState.SYNCING)
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert list(session.state.requests) == ["req-1", "req-2", "req-3"]
        assert session.state.requests["req-1"].finish_reason == "abort"
        assert sum(session.state.num_by_status) == 3
