"""Sort keys: names with numbers, and the order by lifecycle."""

import random
from typing import Any

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.ordering import SequenceView, Sort
from tests.support.sequence_states import add, ids


def test_names_are_sorted_as_people_count() -> None:
    state = EngineState()
    for seq_id in (10, 9, 100, 1):
        add(state, seq_id, random.Random(0))
    view = SequenceView()
    view.sort = Sort("request")
    view.rebuild(state)
    assert ids(view) == [1, 9, 10, 100]
    view.sort = Sort("request", descending=True)
    view.rebuild(state)
    assert ids(view) == [100, 10, 9, 1]


def test_by_lifecycle_running_come_first_then_the_queue_then_the_latest_ends() -> None:
    state = EngineState()

    def put(seq_id: int, status: SequenceStatus, arrival: float, **changes: Any) -> None:
        metrics = RequestMetrics(arrival, arrival, None, None, None)
        metrics.finished_time = changes.pop("finished", None)
        name = f"req-{seq_id}"
        state.requests[name] = RequestState(name, metrics, [seq_id], **changes)
        state.sequences[seq_id] = SequenceState(seq_id, name, status)

    put(1, SequenceStatus.FINISHED_STOPPED, 1.0, finished=20.0)
    put(2, SequenceStatus.FINISHED_ABORTED, 2.0, finished=30.0)
    put(3, SequenceStatus.WAITING, 5.0)
    put(4, SequenceStatus.WAITING, 4.0, priority=1)
    put(5, SequenceStatus.WAITING, 6.0, num_preemptions=1)
    put(6, SequenceStatus.SWAPPED, 3.0, num_preemptions=1)
    put(7, SequenceStatus.RUNNING, 8.0)
    put(8, SequenceStatus.RUNNING, 7.0)
    view = SequenceView()
    view.rebuild(state)
    assert ids(view) == [8, 7, 6, 5, 3, 4, 2, 1]
    assert [view.queue_place(seq_id) for seq_id in (5, 3, 4)] == [(0, 5), (1, 5), (2, 3)]
    assert view.queue_place(7) is None
    view.sort = Sort(descending=True)
    view.rebuild(state)
    assert ids(view) == [1, 2, 4, 3, 5, 6, 7, 8]
