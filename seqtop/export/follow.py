"""The changes of an engine's state as JSON lines (docs/json.md).

The first line has every sequence, each following line those that have changed. A reader keeps a
dict by `seq`.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

from seqtop.export.json_document import as_object
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS
from seqtop.state.filter import NO_FILTER, Filter
from seqtop.state.listener import StateChange
from seqtop.text.sanitize import safe_json
from seqtop.transport.connection import Connection, ConnectionState, UnreachableError
from seqtop.wire.messages import EngineInfo, StepStats

VERSION = 1
"""The version of the format. Added fields and kinds do not change it; other changes do."""

SHORT_FIELDS = tuple(key for key in FIELDS if key not in {"text", "prompt_text"})
"""All columns except texts, which would be repeated for each new token."""

_POLL_SECONDS = 0.1
"""The interval at which the connection and the reader's pipe are checked."""


class _Line(msgspec.Struct, kw_only=True, tag_field="kind"):
    version: int = VERSION
    """The version of the format."""
    time: float
    """The engine's clock, epoch seconds."""
    step: int
    """The last step; -1 before the first."""
    connection: ConnectionState


class StateLine(_Line, kw_only=True, tag="state"):
    """The first line, and one after lost messages or a restart."""

    engine: EngineInfo | None
    stats: StepStats | None
    sequences: list[dict[str, Any]]
    """The id `seq` and the columns of each."""


class ChangeLine(_Line, kw_only=True, tag="change"):
    """The changes since the line before."""

    gone: list[int]
    """Ids of sequences of earlier lines that are not shown any more."""
    stats: StepStats | None
    sequences: list[dict[str, Any]]
    """The id `seq` and the columns of each."""


class EndLine(_Line, kw_only=True, tag="end"):
    """The last line."""

    reason: str


class JsonLinesWriter:
    """Encodes successive states as lines that contain the changes since the line before.

    Args:
        columns: Keys of `seqtop.state.fields.FIELDS`; by default `SHORT_FIELDS`.
        filter_: Selects the sequences.
    """

    def __init__(self, columns: Sequence[str] | None = None, filter_: Filter = NO_FILTER) -> None:
        self._columns = [key for key in columns or SHORT_FIELDS if key != "seq"]
        self._filter = filter_
        self._shown: set[int] = set()
        self._last: tuple[int, ConnectionState] | None = None

    def line(
        self, state: EngineState, connection: Connection, touched: set[int] | None
    ) -> bytes | None:
        """Returns a line with the changes, or `None` if there are none.

        Args:
            touched: The ids of sequences that may have changed; `None` if the whole state has
                been replaced.
        """
        current = (state.step, connection.state)
        has_changed = bool(touched) or current != self._last
        if touched is None or self._last is None:
            self._shown.clear()
            is_whole, touched = True, set(state.sequences)
        elif has_changed or self._filter.grows:
            is_whole = False
            if self._filter.grows:
                touched |= _waiting(state)
        else:
            return None
        ids = [seq_id for seq_id in sorted(touched) if self._shows(state, seq_id)]
        sequences = [self._sequence(state, seq_id) for seq_id in ids]
        gone = sorted(self._shown & touched - set(ids))
        if not is_whole and not (has_changed or gone or set(ids) - self._shown):
            return None
        self._last = current
        self._shown = (self._shown | set(ids)) - set(gone)
        fields = _head(state, connection)
        fields |= {"stats": as_object(state.stats), "sequences": sequences}
        if is_whole:
            return _encode(StateLine(engine=as_object(state.info), **fields))
        return _encode(ChangeLine(gone=gone, **fields))

    def end(self, state: EngineState, connection: Connection, reason: str) -> bytes:
        """Returns the last line."""
        return _encode(EndLine(reason=reason, **_head(state, connection)))

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
    writer: JsonLinesWriter,
    file: BinaryIO,
    *,
    every: float,
    ended: threading.Event,
) -> None:
    """Writes lines to `file` until the engine stops.

    Args:
        session: The session with the engine.
        writer: The encoder of the lines.
        file: A pipe or a file.
        every: The least number of seconds between two lines.
        ended: Ends the function when set.

    Raises:
        UnreachableError: An incompatible engine has taken the endpoint.
        BrokenPipeError: The reader of `file` has closed it.
    """
    touched: set[int] | None = None

    def note(change: StateChange) -> None:
        nonlocal touched
        if change.touched is None or touched is None:
            touched = None
        else:
            touched.update(change.touched)

    session.add_listener(note)
    while True:
        version = session.version
        with session.lock:
            state, connection = session.state, session.connection
            line = writer.line(state, connection, touched)
            touched = set()
            connection_state = connection.state
            stopped = connection_state is ConnectionState.STOPPED
            is_over = stopped or ended.is_set()
            if is_over:
                reason = state.stopped or "the engine stopped" if stopped else "interrupted"
                line = (line or b"") + writer.end(state, connection, reason)
        if line:
            file.write(line)
            file.flush()
        if is_over:
            return
        if connection_state is ConnectionState.INCOMPATIBLE:
            raise UnreachableError(connection.detail)
        earliest = time.monotonic() + every
        while not (ended.is_set() or session.connection.state is not connection_state):
            if _is_closed(file):
                raise BrokenPipeError
            left = earliest - time.monotonic()
            if left > 0:
                ended.wait(min(left, _POLL_SECONDS))
            elif session.wait_for_change(version, _POLL_SECONDS):
                break


def _is_closed(file: BinaryIO) -> bool:
    """Returns whether the reader of a pipe has closed it; an idle engine writes no line to fail."""
    poll = select.poll()
    poll.register(file.fileno(), 0)
    return any(state & select.POLLERR for _, state in poll.poll(0))


def _waiting(state: EngineState) -> set[int]:
    """Returns the ids of sequences whose values change with time alone."""
    return {
        seq_id
        for seq_id, sequence in state.sequences.items()
        if sequence.status == SequenceStatus.WAITING
    }


def _head(state: EngineState, connection: Connection) -> dict[str, Any]:
    return {"time": state.time, "step": state.step, "connection": connection.state}


def _encode(line: StateLine | ChangeLine | EndLine) -> bytes:
    return safe_json(msgspec.json.encode(line).decode()).encode() + b"\n"
