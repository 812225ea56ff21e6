"""The state of an engine, built from its events and from nothing else.

This package does no I/O and imports no widget. `EngineState` is its main interface.
"""

from collections.abc import Iterable
from typing import assert_never

from seqtop.state import reducer, snapshot
from seqtop.state.model import (
    DEFAULT_MAX_FINISHED,
    EngineData,
    RequestState,
    SequenceState,
)
from seqtop.wire.messages import (
    EngineInfo,
    EngineStopped,
    Event,
    Heartbeat,
    NotPublished,
    RequestArrived,
    RequestFinished,
    Step,
    StreamingUpdate,
)
from seqtop.wire.snapshot import Snapshot, Span

__all__ = ["DEFAULT_MAX_FINISHED", "EngineState", "RequestState", "SequenceState", "Span"]


class EngineState(EngineData):
    """An engine's data together with the one way to change it.

    Views only read. Finished requests may be shared with other states: `apply` copies one before
    it changes it.
    """

    def apply(self, event: Event | Snapshot) -> Iterable[int]:
        """Changes this state by one event, or to agree with a snapshot.

        Returns:
            The ids of the sequences that changed, arrived or left the state (finished ones beyond
            `max_finished`). A view needs to redraw only those.
        """
        match event:
            case Step():
                return reducer.apply_step(self, event)
            case RequestArrived():
                return reducer.add_arrival(self, event)
            case StreamingUpdate():
                return reducer.apply_streaming_update(self, event)
            case RequestFinished():
                return reducer.apply_finish(self, event)
            case Heartbeat():
                self.time = max(self.time, event.time)
            case NotPublished():
                self.not_published = event
                self.time = max(self.time, event.time)
            case EngineInfo():
                self.info = event
                self.time = max(self.time, event.start_time)
            case EngineStopped():
                self.stopped = event.reason or "the engine stopped"
                self.time = max(self.time, event.time)
            case Snapshot():
                return snapshot.apply(self, event)
            case _:
                assert_never(event)
        return ()
