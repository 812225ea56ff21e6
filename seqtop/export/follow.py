"""What an engine does, as JSON lines while it does it (`docs/json.md` describes them).

A line repeats nothing that the lines before it have said: the first has every sequence, each
following one those that have changed. Whoever reads keeps a dict by `seq`.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

from seqtop.connection import Connection, ConnectionState, UnreachableError
from seqtop.sanitize import safe_json
from seqtop.sequence import SequenceStatus
from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS
from seqtop.state.filter import EVERYTHING, Filter
from seqtop.wire.messages import Event

VERSION = 1
"""Of the lines' form. Fields and kinds are added without a new one; nothing else changes."""

DEFAULT_COLUMNS = tuple(key for key in FIELDS if key not in {"text", "prompt_text"})
"""All but texts, which would repeat a whole text for each token added to it."""

_LOOK_SECONDS = 0.1
"""How often to look whether the link has changed or the reader has gone."""


class JsonLinesWriter:
    """Makes lines of the states it is shown; each says what is new since the one before."""

    def __init__(self, columns: Sequence[str] | None = None, filter_: Filter = EVERYTHING) -> None:
        self._columns = [key for key in columns or DEFAULT_COLUMNS if key != "seq"]
        self._filter = filter_
        self._shown: set[int] = set()
        self._last: tuple[int, ConnectionState] | None = None

    def line(self, state: EngineState, link: Connection, touched: set[int] | None) -> bytes | None:
        """What is new, of which `touched` sequences may be part; `None` if nothing is.

        `touched` is `None` where the state is another than before: then all of it is new.
        """
        here = (state.step, link.state)
        if touched is None or self._last is None:
            self._shown.clear()
            kind, touched = "state", set(state.sequences)
            extra: dict[str, Any] = {"engine": state.info}
        elif touched or here != self._last:
            kind, extra = "change", {}
            if self._filter.grows:
                touched |= _waiting(state)
        else:
            return None
        self._last = here
        ids = [seq_id for seq_id in sorted(touched) if self._shows(state, seq_id)]
        sequences = [self._sequence(state, seq_id) for seq_id in ids]
        gone = sorted(self._shown & touched - set(ids))
        self._shown = (self._shown | set(ids)) - set(gone)
        if kind == "change":
            extra = {"gone": gone}
        return _encode(kind, state, link, {**extra, "stats": state.stats, "sequences": sequences})

    def end(self, state: EngineState, link: Connection, reason: str) -> bytes:
        """The last line."""
        return _encode("end", state, link, {"reason": reason})

    def _shows(self, state: EngineState, seq_id: int) -> bool:
        sequence = state.sequences.get(seq_id)
        if sequence is None:
            return False
        request = state.requests[sequence.request_id]
        return self._filter.matches(request, sequence, state.time)

    def _sequence(self, state: EngineState, seq_id: int) -> dict[str, Any]:
        sequence = state.sequences[seq_id]
        request = state.requests[sequence.request_id]
        return {"seq": seq_id} | {
            key: FIELDS[key].value(request, sequence, state.time) for key in self._columns
        }


def follow(
    session: Session,
    follower: JsonLinesWriter,
    file: BinaryIO,
    *,
    every: float,
    ended: threading.Event,
) -> None:
    """Write lines to `file`, one each `every` seconds at most, until the engine stops.

    Args:
        ended: Ends it earlier when set.

    Raises:
        UnreachableError: another engine, which cannot be understood, has taken this one's place.
        BrokenPipeError: nobody reads `file` any more.
    """
    news = _News()
    session.listen(news)
    while True:
        news.clear()
        with session.lock:
            state, link = session.state, session.link
            line = follower.line(state, link, session.drain())
            shown = link.state
            stopped = shown is ConnectionState.STOPPED
            over = stopped or ended.is_set()
            if over:
                reason = state.stopped or "the engine stopped" if stopped else "interrupted"
                line = (line or b"") + follower.end(state, link, reason)
        if line:
            file.write(line)
            file.flush()
        if over:
            return
        if shown is ConnectionState.INCOMPATIBLE:
            raise UnreachableError(link.detail)
        earliest = time.monotonic() + every
        while not (ended.is_set() or session.link.state is not shown):
            if _is_closed(file):
                raise BrokenPipeError
            left = earliest - time.monotonic()
            if left > 0:
                ended.wait(min(left, _LOOK_SECONDS))
            elif news.wait(_LOOK_SECONDS):
                break


class _News(threading.Event):
    """A session's listener that is set when anything has happened."""

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        self.set()

    def restore(self, incarnation: str, number: int, state: EngineState) -> None:
        self.set()


def _is_closed(file: BinaryIO) -> bool:
    """Whether `file` is a pipe whose reader has gone: an idle engine makes no line to notice by."""
    poll = select.poll()
    poll.register(file.fileno(), 0)
    return any(state & select.POLLERR for _, state in poll.poll(0))


def _waiting(state: EngineState) -> set[int]:
    """The sequences for which time alone can change a figure."""
    return {
        seq_id
        for seq_id, sequence in state.sequences.items()
        if sequence.status == SequenceStatus.WAITING
    }


def _encode(kind: str, state: EngineState, link: Connection, rest: dict[str, Any]) -> bytes:
    head = {"version": VERSION, "kind": kind, "time": state.time, "step": state.step}
    plain = {
        key: msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
        for key, value in rest.items()
    }
    line = msgspec.json.encode({**head, "link": link.state.value, **plain})
    return safe_json(line.decode()).encode() + b"\n"
