"""The state of an engine, built from its events and from nothing else.

This package does no I/O and imports no widget. `EngineState` is its main interface.
"""

from collections.abc import Iterable

from seqtop.state import reducer, snapshot
from seqtop.state.model import (
    DEFAULT_MAX_FINISHED,
    EngineData,
    RequestState,
    SequenceState,
)
from seqtop.wire.messages import Event
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
        if isinstance(event, Snapshot):
            return snapshot.apply(self, event)
        return reducer.apply(self, event)
