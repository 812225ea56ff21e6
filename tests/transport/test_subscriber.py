"""The viewer's end over real sockets, against an engine end that errs on command."""

import weakref

import msgspec
import pytest

from seqtop.connection import ConnectionState
from seqtop.history.memory_store import MemoryStore
from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.transport import pending_messages, subscriber
from seqtop.wire import codec, frames
from seqtop.wire.messages import (
    PROTOCOL_VERSION,
    EngineStopped,
    Heartbeat,
    Refused,
    RequestFinished,
    Snapshot,
)
from tests.support.hand_driven import HandDrivenEngine, arrival, engine_info, step
from tests.support.waiting import SECONDS, wait_until


def same(viewer: EngineState, engine: EngineState) -> bool:
    """Equal in every field but the viewer's own limit on history."""
    return msgspec.structs.replace(viewer, max_finished=engine.max_finished) == engine


def joined(engine: HandDrivenEngine, session: Session) -> None:
    engine.await_viewer()
    engine.answer()
    assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)


def test_late_joiner_has_what_came_before_and_what_comes_after(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine:
        engine.send(engine_info())
        engine.send(arrival(1))
        with Session(endpoint) as session:
            joined(engine, session)
            assert same(session.state, engine.state)
            engine.send(arrival(2))
            wait_until(lambda: session.sequence_number == 2)
            assert same(session.state, engine.state)
            assert session.connection.num_missed == session.connection.num_resyncs == 0


def test_messages_that_arrive_before_the_snapshot_are_neither_lost_nor_applied_twice(
    endpoint: str,
) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        for event in (engine_info(), arrival(1), step(0)):
            engine.send(event)
        wait_until(lambda: session.connection.num_messages == 3)
        engine.answer()
        engine.send(step(1))
        wait_until(lambda: session.sequence_number == 3)
        assert same(session.state, engine.state)
        assert session.state.num_steps_seen == 2
        assert session.state.num_anomalies == 0


@pytest.mark.usefixtures("collector_off")
def test_a_session_that_is_over_leaves_nothing_behind(endpoint: str) -> None:
    def followed() -> weakref.ref[Session]:
        with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
            joined(engine, session)
            return weakref.ref(session)

    assert followed()() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_its_own_is_not_shown_as_live(endpoint: str) -> None:
    class Faulty(MemoryStore):
        def append(self, *_: object) -> None:
            raise RuntimeError("a fault")

    with (
        HandDrivenEngine(endpoint) as engine,
        Session(endpoint, history=Faulty()) as session,
    ):
        joined(engine, session)
        engine.send(arrival(1))
        assert session.wait_for(ConnectionState.LOST, timeout=SECONDS)
        assert "seqtop has failed" in session.connection.detail
        assert "a fault" in session.connection.detail


def test_gap_is_counted_and_healed(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        for number in range(1, 4):
            engine.send(arrival(number), lose=True)
        engine.send(arrival(4))
        wait_until(lambda: session.connection.state is ConnectionState.SYNCING)
        assert "3 messages were missed" in session.connection.detail
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert same(session.state, engine.state)
        assert session.connection.num_missed == 3
        assert session.connection.num_resyncs == 1


def test_repeated_message_changes_nothing(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        engine.send_frames(frames.pack("one", 0, codec.encode(engine_info(model="other"))))
        engine.send(arrival(1))
        wait_until(lambda: session.sequence_number == 1)
        assert same(session.state, engine.state)


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


def test_unreadable_message_is_named_and_healed(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send_frames(frames.pack("one", 0, b"\xc1 not msgpack"))
        wait_until(lambda: session.connection.state is ConnectionState.SYNCING)
        assert session.connection.num_errors == 1
        assert "could not be read" in session.connection.detail
        engine.send(engine_info())
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert same(session.state, engine.state)


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


def test_history_survives_a_resync_that_has_forgotten_it(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        engine.send(arrival(1))
        request = engine.state.requests["req-1"]
        ended = RequestFinished(
            request_id="req-1",
            time=9.0,
            status=5,
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


def test_goodbye_is_shown(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(EngineStopped(time=5.0, reason="maintenance"))
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        assert session.connection.detail == "maintenance"


def test_silence_is_noticed_and_forgiven(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "SILENCE_SECONDS", 0.1)
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(arrival(1))
        assert session.wait_for(ConnectionState.LOST, timeout=SECONDS)
        assert "req-1" in session.state.requests  # what was seen stays
        monkeypatch.setattr(subscriber, "SILENCE_SECONDS", 60.0)
        engine.send(Heartbeat(time=4.0, step=3))
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)


def test_nobody_there_is_said_in_a_sentence(endpoint: str) -> None:
    with Session(endpoint) as session:
        wait_until(lambda: session.connection.detail)
        assert session.connection.state is ConnectionState.CONNECTING
        assert session.connection.detail == f"no engine answers at {endpoint} yet"


@pytest.mark.parametrize("version", [1, 3])
def test_other_version_on_the_live_stream(endpoint: str, version: int) -> None:
    with HandDrivenEngine(endpoint, welcomes=False) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send_frames([b"seqtop/%d/one" % version, bytes(8), b"whatever"])
        assert session.wait_for(ConnectionState.INCOMPATIBLE, timeout=SECONDS)
        assert f"uses version {version} of the seqtop protocol" in session.connection.detail
        assert "this viewer version 2" in session.connection.detail


def test_snapshot_of_another_version_is_refused(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.answer(
            Snapshot(
                protocol_version=1,
                incarnation="one",
                sequence_number=0,
                state=msgspec.Raw(codec.encode(engine.state)),
            )
        )
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
def test_foreign_publisher(endpoint: str, parts: list[bytes]) -> None:
    with HandDrivenEngine(endpoint, welcomes=False) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send_frames(parts)
        assert session.wait_for(ConnectionState.INCOMPATIBLE, timeout=SECONDS)
        assert "does not send a seqtop stream" in session.connection.detail
        assert session.connection.num_errors == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.requests["req-1"].seq_ids.append(99),
        lambda state: state.requests["req-1"].seq_ids.append(1),
        lambda state: state.requests["req-1"].spans.clear(),
        lambda state: state.sequences.clear(),
        lambda state: state.finished.append("nobody"),
        lambda state: state.finished.append("req-1"),
        lambda state: setattr(state.requests["req-1"], "finish_reason", "stop"),
        lambda state: state.num_by_status.append(1),
    ],
)
def test_snapshot_that_contradicts_itself_is_refused(endpoint: str, spoil: object) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send(arrival(1))
        good = codec.decode(codec.encode(engine.state), EngineState)
        spoil(engine.state)
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
        engine.answer(
            Snapshot(
                protocol_version=PROTOCOL_VERSION,
                incarnation="one",
                sequence_number=0,
                state=msgspec.Raw(b"\x93\x01\x02\x03"),
            )
        )
        wait_until(lambda: session.connection.num_errors == 1)
        assert session.connection.state is ConnectionState.CONNECTING


def test_viewer_keeps_so_many_bytes_while_it_waits_for_a_snapshot(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_messages, "MAX_PENDING_BYTES", 2_000)
    monkeypatch.setattr(subscriber, "_FIRST_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(subscriber, "_RETRY_SECONDS", 0.1)
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send(engine_info())
        early = Snapshot(
            protocol_version=PROTOCOL_VERSION,
            incarnation="one",
            sequence_number=0,
            state=msgspec.Raw(codec.encode(engine.state)),
        )
        for number in range(100):
            engine.send(arrival(number))
        wait_until(lambda: session.connection.num_messages == 101)
        engine.answer(early)  # what followed on it has been let go
        wait_until(lambda: session.connection.num_missed > 50)
        while session.connection.state is not ConnectionState.LIVE:
            engine.answer()
            session.wait_for(ConnectionState.LIVE, timeout=1)
        assert len(session.state.requests) == 100
