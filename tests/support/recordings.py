"""Recordings for tests."""

from pathlib import Path

from seqtop.history import FileWriter
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from tests.support.event_script import EventScript


def record_script(path: Path) -> None:
    """Writes a recording of a scripted run of eighty steps."""
    state = EngineState()
    with FileWriter(path) as writer:
        for number, event in enumerate(EventScript(8, 80)):
            payload = codec.encode(event)
            event = parsing.event(payload)
            state.apply(event)
            writer.append(number, payload, event, state)
