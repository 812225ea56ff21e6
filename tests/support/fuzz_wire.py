"""Mutated messages of the live stream, snapshots and replies, given to what a viewer is made of."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import TypeVar
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from seqtop.checks.checker import Checker
from seqtop.export import json_document, text
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState, snapshot
from seqtop.state.filter import parse as parse_filter
from seqtop.state.ordering import SequenceView, Sort
from seqtop.state.status_sentence import status_sentence
from seqtop.transport.connection import Connection, ConnectionState
from seqtop.wire import WireError, codec, frames, parsing, snapshot_chunks
from seqtop.wire.messages import Accepted, EngineSummary, Event, Refused
from seqtop.wire.snapshot import Snapshot, SnapshotPart
from tests.support.fuzz import Feed, require_reason
from tests.support.mutation import Pool, by_meaning, bytewise, plausible
from tests.support.random_engine import RandomEngine

T = TypeVar("T")
D = TypeVar("D")

_LOOK_EVERY = 50
_AFRESH_EVERY = 400
LINK = Connection("tcp://127.0.0.1:1", ConnectionState.LIVE)


class Viewer:
    """A session and its app, given messages without the sockets."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self.history = MemoryStore(max_events=10_000)
        self.history.restore("one", 0, self.state)
        self.checker = Checker()
        self.view = SequenceView()
        self.view.filter = parse_filter("-status:abort prompt>=0 re:/e/")
        self._numbers = itertools.count(1)

    def take(self, payload: bytes, event: Event) -> None:
        touched = set(self.state.apply(event))
        self.history.append(next(self._numbers), payload, event, self.state)
        self.view.update(self.state, touched)
        self.checker.apply(event)

    def look(self, choose: random.Random) -> None:
        """Everything that shows the state."""
        state = self.state
        self.view.sort = Sort(choose.choice(("", "ttft", "queue", "blocks", "output")), True)
        self.view.rebuild(state)
        self.view.tick(state)
        for seq_id in self.view.page(0, 1_000):
            status_sentence(state, self.view, state.sequences[seq_id])
        text.table(state)
        json_document.encode(state, LINK)
        position = choose.randint(self.history.first, self.history.last)
        self.history.at(position)
        # What is shown to late joiners is what early ones know, however odd it has become.
        with contextlib.suppress(WireError):
            _load([codec.encode(snapshot.take(state))])


def _load(messages: list[bytes]) -> EngineState:
    """The state of a viewer that joins by a snapshot and its parts."""
    state = EngineState(max_finished=100)
    loader = None
    for message in messages:
        reply = parsing.reply(message)
        if loader is None and isinstance(reply, Snapshot):
            loader = snapshot.SnapshotLoader(reply, state)
        elif loader is None or not isinstance(reply, SnapshotPart):
            raise WireError("a part is another message")
        loader.add(reply.requests, reply.cached_blocks or ())
    assert loader is not None
    loader.end()
    return state


class _Stream:
    """A stream in which messages are changed, lost, repeated, late, or those of another engine."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        seed = choose.randrange(2**32)
        events = list(RandomEngine(seed, 120))
        self._events = [codec.encode(event) for event in events]
        self._others = [codec.encode(event) for event in RandomEngine(seed + 1, 40)]
        self._trees = [msgspec.msgpack.decode(event) for event in self._events]
        self._pool = Pool(self._trees)
        state = EngineState()
        for event in events[: len(events) // 4]:
            state.apply(event)
        self._next = len(events) // 4
        self._snapshot = codec.encode(snapshot.take(state))
        chunks = snapshot_chunks.chunks(
            snapshot.request_snapshots(state), snapshot.cached_runs(state)
        )
        with patch.object(snapshot_chunks, "CHUNK_BYTES", len(self._snapshot) // 6):
            self._in_parts = list(snapshot_chunks.messages(snapshot.head(state), chunks))
        # What an engine tells its publisher after a loss: what is, without what has been.
        whole = snapshot.take(state)
        self._repair = codec.encode(
            replace(
                whole,
                history=None,
                requests=[
                    replace(
                        request,
                        history=None,
                        sequences=[
                            replace(sequence, history=None) for sequence in request.sequences
                        ],
                    )
                    for request in whole.requests
                    if state.requests[request.arrival.request_id].finish_reason is None
                ],
            )
        )
        self._replies = [
            codec.encode(reply)
            for reply in (
                Accepted(request_id="req-1"),
                Refused(error="no"),
                EngineSummary(time=1.0, engine_id="e", model="m", ttft_p99=0.5, stopped="it ended"),
            )
        ]
        self._viewer = Viewer(_load([self._snapshot]))
        self._number = 0

    def feed(self) -> bool:
        self._number += 1
        if self._number % _AFRESH_EVERY == 0:
            self._viewer = Viewer(_load([self._snapshot]))
            self._next = len(self._events) // 4
        readers = (self._event,) * 16, (self._frames, self._snapshots, self._repaired, self._reply)
        is_past = self._choose.choice([*readers[0], *readers[1]])()
        if self._number % _LOOK_EVERY == 0:
            self._viewer.look(self._choose)
        return is_past

    def _event(self) -> bool:
        choose, index = self._choose, self._next
        self._next = (index + 1) % len(self._events)
        match choose.randrange(20):
            case 0:  # late, or repeated
                payload = choose.choice(self._events)
            case 1:  # some are lost before it
                self._next = (index + choose.randrange(9)) % len(self._events)
                payload = self._events[self._next]
            case 2 | 3:
                payload = choose.choice(self._others)
            case 4 | 5 | 6:
                payload = by_meaning(choose, self._events[index])
            case 7:
                payload = bytewise(choose, self._events[index])
            case _:
                tree = plausible(choose, self._trees[index], self._pool)
                payload = msgspec.msgpack.encode(tree)
        event = self._read(parsing.event, payload)
        if event is None:
            return False
        try:
            self._viewer.take(payload, event)
        except Exception as error:
            raise AssertionError(f"{error!r} from {payload!r}") from error
        return True

    def _frames(self) -> bool:
        choose = self._choose
        parts = [bytes(frame) for frame in frames.pack("one", 7, choose.choice(self._events)[:40])]
        at = choose.randrange(len(parts))
        parts[at] = bytewise(choose, parts[at])
        kept = parts if choose.random() < 0.5 else parts[: choose.randint(0, 5)]
        return self._read(frames.unpack, kept) is not None

    def _snapshots(self) -> bool:
        choose = self._choose
        parts = choose.choice(([self._snapshot], self._in_parts.copy()))
        at = choose.randrange(len(parts))
        parts[at] = self._changed(parts[at])
        state = self._read(_load, parts)
        if state is None:
            return False
        self._try(Viewer(state))
        return True

    def _repaired(self) -> bool:
        choose = self._choose
        state = _load([self._snapshot])
        for payload in self._events[: choose.randrange(len(self._events))]:
            state.apply(parsing.event(payload))
        repair = self._read(parsing.reply, self._changed(self._repair))
        if not isinstance(repair, Snapshot):
            return False
        if self._read(state.apply, repair) is None:
            return False
        self._try(Viewer(state))
        return True

    def _changed(self, payload: bytes) -> bytes:
        choose = self._choose
        if choose.random() < 0.3:
            return choose.choice((bytewise, by_meaning))(choose, payload)
        tree = plausible(choose, msgspec.msgpack.decode(payload, strict=False), self._pool)
        return msgspec.msgpack.encode(tree)

    def _try(self, viewer: Viewer) -> None:
        for payload in self._choose.sample(self._events, 3):
            viewer.take(payload, parsing.event(payload))
        viewer.look(self._choose)

    def _reply(self) -> bool:
        reply = self._choose.choice(self._replies)
        tree = plausible(self._choose, msgspec.msgpack.decode(reply, strict=False), self._pool)
        return self._read(parsing.reply, msgspec.msgpack.encode(tree)) is not None

    def _read(self, reader: Callable[[D], T], data: D) -> T | None:
        try:
            return reader(data)
        except WireError as error:
            require_reason(error)
            return None
        except Exception as error:
            raise AssertionError(f"{error!r} from {data!r}") from error


@contextlib.contextmanager
def start(choose: random.Random) -> Iterator[Feed]:
    """A viewer of one engine."""
    yield _Stream(choose).feed
