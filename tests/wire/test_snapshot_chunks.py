"""Snapshots in chunks: equal to the whole snapshot, and never restored in part."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seqtop.live.session import Session
from seqtop.state import EngineState, snapshot
from seqtop.transport import subscriber
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec, frames, parsing, snapshot_chunks
from seqtop.wire.element_count import MAX_STATE_ELEMENTS, count_elements
from seqtop.wire.errors import WireError
from seqtop.wire.messages import CachedBlocks, RequestArrived
from seqtop.wire.snapshot import RequestSnapshot, Snapshot, SnapshotPart
from tests.support.events import arrival, engine_info
from tests.support.hand_driven import HandDrivenEngine
from tests.support.random_engine import RandomEngine
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/e"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_chunks, "CHUNK_BYTES", 2_000)


def messages_of(state: EngineState) -> list[bytes]:
    """The snapshot of a state and its parts."""
    chunks = snapshot_chunks.chunks(snapshot.request_snapshots(state), snapshot.cached_runs(state))
    return list(snapshot_chunks.messages(snapshot.head(state), chunks))


def encoded(requests: Iterable[RequestSnapshot], cached: Iterable[CachedBlocks]) -> Iterator[bytes]:
    return snapshot_chunks.messages(
        snapshot.head(EngineState(cached_blocks={})), snapshot_chunks.chunks(requests, cached)
    )


def requests(count: int) -> Iterator[RequestSnapshot]:
    for number in range(count):
        yield RequestSnapshot(arrival=arrival(number), sequences=[])


def runs(count: int) -> Iterator[CachedBlocks]:
    for block in range(count):
        yield CachedBlocks(request_id="r", seq_id=1, position=block, blocks=[block])


def scripted(num_steps: int = 200) -> Iterator[EngineState]:
    state = EngineState()
    for event in RandomEngine(3, num_steps):
        state.apply(event)
        yield state


def loaded(messages: list[bytes]) -> EngineState:
    """The state of a viewer that receives these messages."""
    state = EngineState()
    first: Any = parsing.reply(messages[0])
    loader = snapshot.SnapshotLoader(first, state)
    loader.add(first.requests, first.cached_blocks or ())
    for index, message in enumerate(messages[1:]):
        part: Any = parsing.reply(message)
        assert (part.index, part.is_last) == (index, index == len(messages) - 2)
        loader.add(part.requests, part.cached_blocks)
    loader.end()
    return state


@pytest.mark.usefixtures("small_chunks")
def test_chunks_merge_to_the_whole_state() -> None:
    most = 0
    for number, state in enumerate(scripted()):
        if number % 40 == 0:
            messages = messages_of(state)
            most = max(most, len(messages))
            viewer = loaded(messages)
            viewer.max_finished = state.max_finished
            assert viewer == state
            # In the order of their arrival, which equality does not compare.
            assert list(viewer.requests) == list(state.requests)
    assert most > 5


@pytest.mark.usefixtures("small_chunks")
def test_one_message_is_the_snapshot_that_the_parts_add_up_to() -> None:
    *_, state = scripted()
    chunks = snapshot_chunks.chunks(snapshot.request_snapshots(state), snapshot.cached_runs(state))
    assert parsing.reply(snapshot_chunks.message(snapshot.head(state), chunks)) == parsing.reply(
        codec.encode(snapshot.take(state))
    )
    first, *parts = map(parsing.reply, messages_of(state))
    assert isinstance(first, Snapshot)
    assert first.has_parts
    assert len(parts) > 5
    for part in parts:
        assert isinstance(part, SnapshotPart)
        first.requests += part.requests
        assert first.cached_blocks is not None
        first.cached_blocks += part.cached_blocks
    first.has_parts = False
    assert first == parsing.reply(codec.encode(snapshot.take(state)))


def test_a_small_snapshot_has_no_parts_and_an_unknown_cache_stays_unknown() -> None:
    state = EngineState()
    state.apply(arrival(1))
    (only,) = messages_of(state)
    reply = parsing.reply(only)
    assert reply == parsing.reply(codec.encode(snapshot.take(state)))
    assert isinstance(reply, Snapshot)
    assert not reply.has_parts
    assert reply.cached_blocks is None


@pytest.mark.parametrize(
    ("num_requests", "num_runs"),
    [(0, 0), (1, 0), (15, 16), (16, 15), (17, 300), (300, 17), (0, 20_000), (20_000, 0)],
)
def test_lists_of_any_length(num_requests: int, num_runs: int) -> None:
    messages = list(encoded(requests(num_requests), runs(num_runs)))
    first, *parts = map(parsing.reply, messages)
    assert isinstance(first, Snapshot)
    assert first.has_parts is (len(parts) > 0)
    all_requests, all_runs = first.requests, first.cached_blocks or []
    for message, part in zip(messages[1:], parts, strict=True):
        assert len(message) < 2.1 * snapshot_chunks.CHUNK_BYTES
        assert isinstance(part, SnapshotPart)
        all_requests += part.requests
        all_runs += part.cached_blocks
    assert all_requests == list(requests(num_requests))
    assert all_runs == list(runs(num_runs))


@pytest.mark.usefixtures("small_chunks")
def test_a_request_that_is_larger_than_a_chunk_has_one_of_its_own() -> None:
    large = RequestArrived(
        request_id="large", arrival_time=1.0, seq_ids=[], num_prompt_tokens=1, prompt="x" * 9_000
    )
    whole = [
        *requests(2),
        *(RequestSnapshot(arrival=arrival, sequences=[]) for arrival in (large, large)),
        *requests(2),
    ]
    first, *parts = (parsing.reply(message) for message in encoded(whole, ()))
    assert isinstance(first, Snapshot)
    assert [len(part.requests) for part in parts if isinstance(part, SnapshotPart)] == [1, 2]
    assert len(first.requests) == 3


def test_encoding_takes_no_more_of_a_state_than_it_has_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A viewer decodes the first part while the engine encodes the next one."""
    monkeypatch.setattr(snapshot_chunks, "CHUNK_BYTES", 200)
    taken = itertools.count()
    of_a_state = (request for request in requests(1_000) if next(taken) >= 0)
    next(encoded(of_a_state, ()))
    assert next(taken) < 50


def test_there_are_never_more_chunks_than_an_engine_queues_for_a_viewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_chunks, "CHUNK_BYTES", 2**6)
    in_proportion = frames.MAX_SNAPSHOT_BYTES * snapshot_chunks.CHUNK_BYTES // 2**18
    size = len(codec.encode(next(runs(1))))
    chunks = list(snapshot_chunks.chunks((), runs(in_proportion // (size + 4))))
    assert sum(len(chunk.cached_blocks) for chunk in chunks) > in_proportion * 0.6
    assert len(chunks) <= snapshot_chunks.MAX_CHUNKS


def test_value_without_a_form_on_the_wire_is_a_wire_error() -> None:
    request = RequestSnapshot(arrival=arrival(1), sequences=[object()])  # type: ignore[list-item]
    with pytest.raises(WireError, match="object"):
        list(encoded([request], ()))


@pytest.mark.usefixtures("small_chunks")
def test_viewers_join_by_parts_and_can_go_back_to_that_moment(endpoint: str) -> None:
    *_, engine_state = scripted()
    wanted = codec.decode(codec.encode(engine_state), EngineState)
    with MessagePublisher(endpoint, engine_info(), engine_state), Session(endpoint) as session:
        session.await_engine(SECONDS)
        with session.lock:
            session.state.max_finished = engine_state.max_finished
            session.state.time = wanted.time  # heartbeats move it on
            session.state.info, session.state.stopped = wanted.info, wanted.stopped
            assert session.state == wanted
            past = session.history.at(session.history.first)
            assert past.sequences == session.state.sequences
            assert past.requests == session.state.requests
        assert session.connection.num_errors == session.connection.num_resyncs == 0


class Parts:
    """A snapshot of a hand-driven engine, to be sent message by message."""

    def __init__(self, engine: HandDrivenEngine) -> None:
        self._engine = engine
        self.first, *self.parts = messages_of(engine.state)
        assert len(self.parts) > 2
        assert engine.router.poll(MILLISECONDS), "no viewer asked"
        self._identity, _ = engine.router.recv_multipart()
        self.send(self.first)

    def send(self, payload: bytes) -> None:
        self._engine.router.send_multipart([self._identity, *self._engine.pack_reply(payload)])

    def changed(self, index: int, /, **changes: Any) -> bytes:
        """A part with some fields changed."""
        part = parsing.reply(self.parts[index])
        assert isinstance(part, SnapshotPart)
        return codec.encode(msgspec.structs.replace(part, **changes))

    def send_all(self) -> None:
        for part in self.parts:
            self.send(part)


def answer_in_parts(engine: HandDrivenEngine, wrong: str) -> None:
    """Answers once with something wrong in the parts."""
    parts = Parts(engine)
    parts.send(parts.parts[0])
    match wrong:
        case "one is missing":
            pass
        case "one comes twice":
            parts.send(parts.parts[0])
        case "one repeats another":
            parts.send(parts.changed(0, index=1))
        case "another message":
            parts.send(codec.encode(arrival(1)))
        case "garbage":
            parts.send(b"\x93\x01\x02\x03")
        case "no list":
            parts.send(parts.parts[1].replace(b"\xdd", b"\xc1", 1))
        case "too many bytes":
            parts.send(parts.changed(1, cached_blocks=list(runs(800))))
        case "too many elements":
            parts.send(parts.changed(1, cached_blocks=list(runs(400))))
    for part in parts.parts[2:]:
        parts.send(part)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("one is missing", None),
        ("one comes twice", None),
        ("one repeats another", "in it twice"),
        ("another message", "cannot decode"),
        ("garbage", "cannot decode"),
        ("no list", "cannot decode"),
        ("too many bytes", "more than 9,000 bytes"),
        ("too many elements", "more than"),
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
        if wrong == "too many bytes":
            monkeypatch.setattr(frames, "MAX_SNAPSHOT_BYTES", 9_000)
        if wrong == "too many elements":
            first, *rest = messages_of(engine.state)
            limit = sum(count_elements(message, MAX_STATE_ELEMENTS) for message in (first, *rest))
            monkeypatch.setattr(subscriber, "MAX_STATE_ELEMENTS", limit)
        answer_in_parts(engine, wrong)
        if said is not None:
            wait_until(lambda: session.connection.num_errors >= 1)
            assert said in session.connection.last_error
        assert session.state.requests == {}
        monkeypatch.setattr(frames, "MAX_SNAPSHOT_BYTES", 2**29)
        Parts(engine).send_all()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert session.state.requests == engine.state.requests
        assert session.connection.num_errors == (said is not None)


@pytest.mark.usefixtures("small_chunks")
def test_messages_published_between_the_parts_come_after_them(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        for number in range(40):
            engine.send(arrival(number))
        parts = Parts(engine)
        parts.send(parts.parts[0])
        engine.live.send_multipart(
            frames.pack(engine.incarnation, engine.next_number, codec.encode(arrival(40)))
        )
        for part in parts.parts[1:]:
            parts.send(part)
        wait_until(lambda: len(session.state.requests) == 41)
        assert session.connection.num_resyncs == session.connection.num_errors == 0
