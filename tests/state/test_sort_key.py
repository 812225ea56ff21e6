"""Sort keys: names with numbers, and the order by lifecycle."""

import math
import random
from typing import Any

import pytest

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.ordering import SequenceView, Sort
from tests.support.scripted import engine_info
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
    assert ids(view) == [8, 7, 6, 3, 5, 4, 2, 1]
    assert [view.queue.position(seq_id) for seq_id in (3, 5, 4)] == [(0, 3), (1, 3), (2, 5)]
    assert view.queue.position(7) is None
    view.sort = Sort(descending=True)
    view.rebuild(state)
    assert ids(view) == [1, 2, 4, 5, 3, 6, 7, 8]


def queued(state: EngineState, seq_id: int, arrival: float, **changes: Any) -> None:
    name = f"req-{seq_id}"
    metrics = RequestMetrics(arrival, arrival, None, None, None)
    state.requests[name] = RequestState(name, metrics, [seq_id], **changes)
    state.sequences[seq_id] = SequenceState(seq_id, name, SequenceStatus.WAITING)


@pytest.mark.parametrize(
    ("order", "queue"),
    [
        ("priority", [5, 4, 1, 3, 2]),
        ("priority_alone", [1, 3, 5, 4, 2]),
        ("fcfs", [4, 5, 3, 2, 1]),
        ("preempted_last", [4, 3, 2, 1, 5]),
    ],
)
def test_the_queue_is_in_the_order_of_its_engine(order: str, queue: list[int]) -> None:
    state = EngineState()
    state.info = engine_info(queue_order=order)
    queued(state, 1, 10.0, queue_turn=5)
    queued(state, 2, 10.0, queue_turn=4, priority=2)
    queued(state, 3, 12.0, queue_turn=3, num_preemptions=1)
    queued(state, 4, 13.0, queue_turn=2, priority=1)
    queued(state, 5, 12.5, queue_turn=6)
    for seq_id in (4, 5):
        state.sequences[seq_id].block_table = [1]
    view = SequenceView()
    view.rebuild(state)
    assert view.queue.ids == ids(view) == queue
    view.sort = Sort(descending=True)
    view.rebuild(state)
    assert (view.queue.ids, ids(view)) == (queue, queue[::-1])


def test_an_unknown_end_counts_as_the_last_token_and_an_end_at_nan_as_the_oldest() -> None:
    state = EngineState()
    for seq_id, last_token, finished in (
        (1, 5.0, None),
        (2, 6.0, None),
        (3, 1.0, 5.5),
        (4, 9.0, math.nan),
    ):
        queued(state, seq_id, 0.0)
        state.sequences[seq_id].status = SequenceStatus.FINISHED_STOPPED
        state.requests[f"req-{seq_id}"].metrics = RequestMetrics(
            0.0, last_token, None, None, None, finished
        )
    view = SequenceView()
    view.rebuild(state)
    assert ids(view) == [2, 3, 1, 4]


@pytest.mark.parametrize("descending", [False, True])
def test_texts_are_sorted_in_any_case_and_by_their_beginning(descending: bool) -> None:
    state = EngineState()
    texts = ["b 2", "B 10", "A", "x" * 300 + "b", "X" * 300 + "a", ""]
    for seq_id, text in enumerate(texts):
        queued(state, seq_id, 0.0)
        state.sequences[seq_id].text = text
    view = SequenceView()
    view.sort = Sort("text", descending)
    view.rebuild(state)
    assert ids(view) == ([3, 4, 1, 0, 2, 5] if descending else [5, 2, 0, 1, 3, 4])
