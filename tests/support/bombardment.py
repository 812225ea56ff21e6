"""Feeds spoilt messages to everything that reads from the network or from a file.

What is allowed: a `WireError` (for a file a `RecordingError`), or a message that is taken, however
odd. What is taken is applied, checked and shown like any other. Whatever else is raised ends the
bombardment, with the input that did it; so does an input that keeps it busy for too long.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import TypeVar
from unittest.mock import patch

import msgspec

from seqtop.checks import Checker
from seqtop.connection import Connection, ConnectionState
from seqtop.export import json_document, text
from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState, snapshot
from seqtop.state.explain import explain
from seqtop.state.filter import parse as parse_filter
from seqtop.state.ordering import SequenceView, Sort
from seqtop.wire import WireError, codec, frames, parsing, snapshot_chunks
from seqtop.wire.messages import (
    Abort,
    Accepted,
    Event,
    Refused,
    Snapshot,
    SnapshotRequest,
    Submit,
)
from tests.support.event_script import EventScript
from tests.support.mutation import by_meaning, bytewise

T = TypeVar("T")
D = TypeVar("D")

_LOOK_EVERY = 50
_AFRESH_EVERY = 400
_HANG_SECONDS = 60.0
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
            explain(state, self.view, state.sequences[seq_id])
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


class Bombardment:
    """`num_inputs` spoilt inputs from one seed, spread over all readers.

    `outcomes` counts, for each reader, what was refused and what was taken.
    """

    def __init__(self, seed: int) -> None:
        self._choose = random.Random(seed)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        events = list(EventScript(seed, 120))
        state = EngineState()
        for event in events[: len(events) // 2]:
            state.apply(event)
        self._snapshot = codec.encode(state)
        with patch.object(snapshot_chunks, "CHUNK_BYTES", len(self._snapshot) // 6):
            self._in_parts = [bytes(part) for part in snapshot_chunks.encode(state)]
        self._events = [codec.encode(event) for event in events]
        self._replies = [
            codec.encode(reply)
            for reply in (
                Snapshot(1, "one", 3, state=msgspec.Raw(self._snapshot)),
                Accepted(request_id="req-1"),
                Refused(error="no"),
            )
        ]
        self._commands = [
            codec.encode(command)
            for command in (
                SnapshotRequest(),
                Submit(prompt="hello", sampling_params=SamplingParams(max_tokens=3, stop=["x"])),
                Abort(request_id="req-1"),
            )
        ]
        self._viewer = Viewer(self._snapshot)

    def run(self, num_inputs: int) -> None:
        readers: tuple[Callable[[], None], ...] = (
            *[self._event] * 12, self._frames, self._snapshots, self._reply, self._command,
        )  # fmt: skip
        for number in range(num_inputs):
            if number % 50 == 0:
                faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
            if number % _AFRESH_EVERY == 0:
                self._viewer = Viewer(self._snapshot)
            readers[number % len(readers)]()
            if number % _LOOK_EVERY == 0:
                self._viewer.look(self._choose)
        faulthandler.cancel_dump_traceback_later()

    def _spoil(self, data: bytes) -> bytes:
        spoil = bytewise if self._choose.random() < 0.4 else by_meaning
        return spoil(self._choose, data)

    def _event(self) -> None:
        payload = self._spoil(self._choose.choice(self._events))
        event = self._read("event", parsing.event, payload)
        if event is not None:
            try:
                self._viewer.take(payload, event)
            except Exception as error:
                raise AssertionError(f"{error!r} from {payload!r}") from error

    def _frames(self) -> None:
        parts = [
            bytes(each) for each in frames.pack("one", 7, self._choose.choice(self._events)[:40])
        ]
        for _ in range(self._choose.randint(1, 2)):
            at = self._choose.randrange(len(parts))
            parts[at] = bytewise(self._choose, parts[at])
        self._read("frames", frames.unpack, parts[: self._choose.randint(0, 5)])

    def _snapshots(self) -> None:
        parts = self._choose.choice(([self._snapshot], self._in_parts.copy()))
        at = self._choose.randrange(len(parts))
        parts[at] = self._spoil(parts[at])
        state = self._read("snapshot", _load, parts)
        if state is not None:
            viewer = Viewer(codec.encode(state))
            for payload in self._choose.sample(self._events, 3):
                viewer.take(payload, parsing.event(payload))
            viewer.look(self._choose)

    def _reply(self) -> None:
        self._read("reply", parsing.reply, self._spoil(self._choose.choice(self._replies)))

    def _command(self) -> None:
        self._read("command", parsing.command, self._spoil(self._choose.choice(self._commands)))

    def _read(self, name: str, reader: Callable[[D], T], data: D) -> T | None:
        try:
            found = reader(data)
        except WireError as error:
            self.outcomes[name, "refused" if str(error) else "refused without a word"] += 1
            return None
        except Exception as error:
            raise AssertionError(f"{error!r} from {data!r}") from error
        self.outcomes[name, "taken"] += 1
        return found
