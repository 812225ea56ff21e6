"""Adds sequences to a state, and reads the ids of a view."""

import random

from seqtop.sequence import RequestMetrics
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.ordering import SequenceView


def add(state: EngineState, seq_id: int, chance: random.Random) -> None:
    name = f"req-{seq_id}"
    arrival = 100.0 + chance.randrange(50)
    metrics = RequestMetrics(arrival, arrival, None, None, None)
    state.requests[name] = RequestState(name, metrics, [seq_id], priority=chance.randrange(3))
    state.sequences[seq_id] = SequenceState(seq_id, name)


def ids(view: SequenceView) -> list[int]:
    return view.page(0, len(view))
