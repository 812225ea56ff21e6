"""States in chunks: equal to the whole state, and never restored in part."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from seqtop.live.connection import ConnectionState
from seqtop.live.session import Session
from seqtop.state import EngineState, snapshot
from seqtop.transport import subscriber
from seqtop.transport.publisher import Publisher
from seqtop.wire import codec, frames, snapshot_chunks
from seqtop.wire.errors import WireError
from seqtop.wire.messages import SnapshotPart
from tests.support.event_script import EventScript
from tests.support.hand_driven import HandDrivenEngine, arrival, engine_info
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/e"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_chunks, "CHUNK_BYTES", 2_000)


class Two(msgspec.Struct):
    entries: dict[int, str]
    name: str = "two"


def chunks_of(struct: object) -> list[bytes]:
    return [bytes(each) for each in snapshot_chunks.encode(struct)]


def scripted(num_steps: int = 200) -> Iterator[EngineState]:
    state = EngineState()
    for event in EventScript(3, num_steps):
        state.apply(event)
        yield state


@pytest.mark.usefixtures("small_chunks")
def test_chunks_merge_to_the_whole_state() -> None:
    most = 0
    for number, state in enumerate(scripted()):
        if number % 40 == 0:
            first, *parts = chunks_of(state)
            most = max(most, len(parts))
            loader = snapshot.SnapshotLoader(first)
            for part in parts:
                loader.add(part)
            loaded = loader.end(max_finished=state.max_finished)
            assert loaded == state
            # In the order of their arrival, which the form of a state does not tell.
            assert list(loaded.requests) == list(state.requests)
    assert most > 5


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 300, 70_000])
def test_dictionaries_of_any_length(count: int) -> None:
    struct = Two(dict.fromkeys(range(count), "x" * 10))
    first, *parts = chunks_of(struct)
    found = codec.decode(first, Two)
    for part in parts:
        assert len(part) < 2 * snapshot_chunks.CHUNK_BYTES
        more = codec.decode(part, dict[str, dict[int, str]])
        assert found.entries.keys().isdisjoint(more["entries"])
        found.entries |= more["entries"]
    assert found == struct


def test_there_are_never_more_chunks_than_an_engine_queues_for_a_viewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_chunks, "CHUNK_BYTES", 2**6)
    in_proportion = frames.MAX_SNAPSHOT_BYTES * snapshot_chunks.CHUNK_BYTES // 2**18
    struct = Two(dict.fromkeys(range(in_proportion // 8), "xx"))
    parts = chunks_of(struct)
    assert sum(map(len, parts)) > in_proportion * 0.6
    assert len(parts) <= snapshot_chunks.MAX_CHUNKS


def test_value_without_a_form_on_the_wire_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="object"):
        chunks_of(Two({1: object()}))  # type: ignore[dict-item]


@pytest.mark.usefixtures("small_chunks")
def test_viewers_join_by_parts_and_can_go_back_to_that_moment(endpoint: str) -> None:
    *_, engine_state = scripted()
    wanted = codec.encode(engine_state)
    with Publisher(endpoint, engine_info(), engine_state), Session(endpoint) as session:
        session.await_engine(SECONDS)
        with session.lock:
            session.state.max_finished = engine_state.max_finished
            session.state.time = codec.decode(wanted, EngineState).time  # heartbeats move it on
            session.state.info = codec.decode(wanted, EngineState).info
            assert codec.encode(session.state) == wanted
            past = session.history.at(session.history.first)
            assert past.sequences == session.state.sequences
            assert past.requests == session.state.requests
        assert session.connection.num_errors == session.connection.num_resyncs == 0


class Parts:
    """A snapshot of a hand-driven engine, to be sent message by message."""

    def __init__(self, engine: HandDrivenEngine) -> None:
        self._engine = engine
        first, *self.parts = chunks_of(engine.state)
        assert len(self.parts) > 2
        assert engine.router.poll(MILLISECONDS), "no viewer asked"
        self._identity, _ = engine.router.recv_multipart()
        self._send(engine.snapshot(state=msgspec.Raw(first), has_parts=True))

    def send(self, index: int, state: bytes | None = None, *, is_last: bool | None = None) -> None:
        last = index == len(self.parts) - 1
        part = SnapshotPart(index=index, is_last=last if is_last is None else is_last)
        self._send(part, self.parts[index] if state is None else state)

    def send_all(self) -> None:
        for index in range(len(self.parts)):
            self.send(index)

    def _send(self, message: object, *state: bytes) -> None:
        sealed = frames.seal([codec.encode(message), *state])
        self._engine.router.send_multipart([self._identity, *sealed])


def answer_in_parts(engine: HandDrivenEngine, wrong: str) -> None:
    """Answer once with something wrong in the parts."""
    parts = Parts(engine)
    parts.send(0)
    match wrong:
        case "one is missing":
            parts.send(2)
        case "one comes twice":
            parts.send(0)
        case "one repeats another":
            parts.send(1, parts.parts[0])
        case "the last is missing":
            parts.send(1, is_last=True)
        case "garbage":
            parts.send(1, b"\x93\x01\x02\x03")
        case "too much":
            parts.send(1, bytes(3_000))
    for index in range(2, len(parts.parts)):
        parts.send(index)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("one is missing", None),
        ("one comes twice", None),
        ("one repeats another", "in it twice"),
        ("the last is missing", "snapshot: "),
        ("garbage", "cannot decode StatePart"),
        ("too much", "more than"),
    ],
)
def test_half_a_snapshot_is_none_and_is_asked_for_again(
    endpoint: str, wrong: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "_FIRST_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(subscriber, "_RETRY_SECONDS", 0.1)
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        for number in range(40):
            engine.send(arrival(number))
        if wrong == "too much":
            monkeypatch.setattr(frames, "MAX_SNAPSHOT_BYTES", 4_500)
        answer_in_parts(engine, wrong)
        if said is not None:
            wait_until(lambda: session.connection.num_errors >= 1)
            assert said in session.connection.last_error
        assert session.state.requests == {}
        monkeypatch.setattr(frames, "MAX_SNAPSHOT_BYTES", 2**29)
        Parts(engine).send_all()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert codec.encode(session.state.requests) == codec.encode(engine.state.requests)
        assert session.connection.num_errors == (said is not None)


@pytest.mark.usefixtures("small_chunks")
def test_what_is_published_between_the_parts_comes_after_them(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        for number in range(40):
            engine.send(arrival(number))
        parts = Parts(engine)
        parts.send(0)
        engine.send(arrival(40))
        for index in range(1, len(parts.parts)):
            parts.send(index)
        wait_until(lambda: len(session.state.requests) == 41)
        assert session.connection.num_resyncs == session.connection.num_errors == 0
