"""Recordings with violations, damage or without steps."""

from pathlib import Path

from seqtop.history import FileWriter, RecordingError
from seqtop.history.file_format import EventsHeader, KeyframeHeader
from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import CompressedData
from seqtop.state import EngineState
from seqtop.wire import codec
from seqtop.wire.messages import Event
from tests.support.events import arrival, engine_info, step
from tests.support.recordings import frames_of

BROKEN: tuple[Event, ...] = (
    engine_info(),
    arrival(1),
    step(0),
    step(1),
    arrival(1),  # announced twice
)


def record(path: Path, events: tuple[Event, ...]) -> None:
    state = EngineState()
    with FileWriter(path) as writer:
        writer.restore("one", -1, state)
        for number, event in enumerate(events):
            state.apply(event)
            writer.append(number, codec.encode(event), event, state)


RIGHT: tuple[Event, ...] = (engine_info(), arrival(1), *(step(number) for number in range(6)))
NO_STEP: tuple[Event, ...] = (engine_info(), arrival(1))


def damage(path: Path, how: str) -> None:
    """Damages a recording in a way that a check has to report."""
    whole = path.read_bytes()
    kind = KeyframeHeader if how == "bad keyframe" else EventsHeader
    places = [offset for offset, header in frames_of(path) if isinstance(header, kind)]
    middle = places[len(places) // 2] + 12
    match how:
        case "empty":
            path.write_bytes(b"")
        case "header cut":
            path.write_bytes(whole[:20])
        case "cut at once":
            path.write_bytes(whole[:30])
        case "cut":
            path.write_bytes(whole[:middle])
        case "bad events" | "bad keyframe":
            path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])


class Unreadable(MemoryStore):
    """A history whose compressed parts cannot be read."""

    def _read(self, stored: CompressedData) -> bytes:
        raise RecordingError("it is broken")
