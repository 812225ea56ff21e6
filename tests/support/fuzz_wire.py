"""Mutated messages of the live stream, snapshots and replies, given to what a viewer is made of."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import TypeVar
from unittest.mock import patch

import msgspec

from seqtop.checks.checker import Checker
from seqtop.export import json_document, text
from seqtop.history.memory_store import MemoryStore
from seqtop.live.connection import Connection, ConnectionState
from seqtop.state import EngineState, snapshot
from seqtop.state.filter import parse as parse_filter
from seqtop.state.ordering import SequenceView, Sort
from seqtop.state.status_sentence import status_sentence
from seqtop.wire import WireError, codec, frames, parsing, snapshot_chunks
from seqtop.wire.messages import Accepted, Event, Refused, Snapshot
from tests.support.event_script import EventScript
from tests.support.fuzz import Feed, require_reason
from tests.support.mutation import Pool, by_meaning, bytewise, plausible

T = TypeVar("T")
D = TypeVar("D")

_LOOK_EVERY = 50
_AFRESH_EVERY = 400
LINK = Connection("tcp://127.0.0.1:1", ConnectionState.LIVE)


class Viewer:
    """What a session and its app do with messages, without the sockets."""

    def __init__(self, data: bytes) -> None:
        self.state = snapshot.load(data, max_finished=100)
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
            snapshot.load(codec.encode(state), max_finished=100)


def _load(parts: list[bytes]) -> EngineState:
    loader = snapshot.SnapshotLoader(parts[0])
    for part in parts[1:]:
        loader.add(part)
    return loader.end(max_finished=9)


class _Stream:
    """A stream in which messages are changed, lost, repeated, late, or those of another engine."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        seed = choose.randrange(2**32)
        events = list(EventScript(seed, 120))
        self._events = [codec.encode(event) for event in events]
        self._others = [codec.encode(event) for event in EventScript(seed + 1, 40)]
        self._trees = [msgspec.msgpack.decode(each) for each in self._events]
        self._pool = Pool(self._trees)
        state = EngineState()
        for event in events[: len(events) // 4]:
            state.apply(event)
        self._next = len(events) // 4
        self._snapshot = codec.encode(state)
        with patch.object(snapshot_chunks, "CHUNK_BYTES", len(self._snapshot) // 6):
            self._in_parts = [bytes(part) for part in snapshot_chunks.encode(state)]
        self._replies = [
            codec.encode(reply)
            for reply in (
                Snapshot(1, "one", 3, state=msgspec.Raw(self._snapshot)),
                Accepted(request_id="req-1"),
                Refused(error="no"),
            )
        ]
        self._viewer = Viewer(self._snapshot)
        self._number = 0

    def feed(self) -> bool:
        self._number += 1
        if self._number % _AFRESH_EVERY == 0:
            self._viewer = Viewer(self._snapshot)
            self._next = len(self._events) // 4
        readers = (self._event,) * 16, (self._frames, self._snapshots, self._reply)
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
        parts = [bytes(each) for each in frames.pack("one", 7, choose.choice(self._events)[:40])]
        at = choose.randrange(len(parts))
        parts[at] = bytewise(choose, parts[at])
        kept = parts if choose.random() < 0.5 else parts[: choose.randint(0, 5)]
        return self._read(frames.unpack, kept) is not None

    def _snapshots(self) -> bool:
        choose = self._choose
        parts = choose.choice(([self._snapshot], self._in_parts.copy()))
        at = choose.randrange(len(parts))
        if choose.random() < 0.3:
            parts[at] = choose.choice((bytewise, by_meaning))(choose, parts[at])
        else:
            tree = plausible(choose, msgspec.msgpack.decode(parts[at], strict=False), self._pool)
            parts[at] = msgspec.msgpack.encode(tree)
        state = self._read(_load, parts)
        if state is None:
            return False
        viewer = Viewer(codec.encode(state))
        for payload in choose.sample(self._events, 3):
            viewer.take(payload, parsing.event(payload))
        viewer.look(choose)
        return True

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
