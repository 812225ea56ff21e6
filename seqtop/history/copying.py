"""Copies of recorded time into a file."""

from __future__ import annotations

import os

from seqtop.history.event_index import EventKind
from seqtop.history.file_writer import FileWriter
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.wire import parsing
from seqtop.wire.errors import WireError


def save(timeline: Timeline, path: str | os.PathLike[str]) -> FileWriter:
    """Writes a timeline, which may grow meanwhile, to a new file; returns the closed writer.

    If the timeline drops its oldest segments, the copy begins with the second one, since the first
    may be dropped while it is read.

    Args:
        timeline: The recorded time; it has at least one position.
        path: The file, which must not exist.

    Raises:
        RecordingError: The timeline cannot be read, or the file cannot be written.
    """
    with FileWriter(path) as writer:
        try:
            _copy(timeline, writer)
        except WireError as error:
            raise RecordingError(f"{path} is not complete: {error}") from error
    return writer


def _copy(timeline: Timeline, writer: FileWriter) -> None:
    with timeline.lock:
        start, stop = timeline.first, timeline.last
        if start > 0:
            start = timeline.keyframe_after(start) or start
        state = timeline.at(start)
    num_restarts = 0
    writer.restore(str(num_restarts), timeline.index[start].number, state)
    for position, payload in timeline.payloads(start, stop):
        entry = timeline.index[position]
        if payload is None:  # a snapshot
            num_restarts += bool(entry.kind & EventKind.RESTART)
            state = timeline.at(position)
            writer.restore(str(num_restarts), entry.number, state)
        else:
            event = parsing.event(payload)
            state.apply(event)
            writer.append(entry.number, payload, event, state)
