"""Two runs side by side at one time."""

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.whatif.moment import side_by_side
from seqtop.wire.messages import RequestFinished
from tests.support.events import arrival, engine_info, stats, step


def test_a_request_that_is_cut_off_has_neither_finished_nor_been_aborted() -> None:
    recorded, predicted = EngineState(), EngineState()
    for state in (recorded, predicted):
        for event in (engine_info(), arrival(1), arrival(2), step(0)):
            state.apply(event)
    for request in [*predicted.requests.values()]:
        aborted = SequenceStatus.FINISHED_ABORTED
        predicted.apply(
            RequestFinished(
                request_id=request.request_id, time=0.0, status=aborted, metrics=request.metrics
            )
        )
    lines = [line.split() for line in side_by_side(recorded, predicted, {"req-2": 0.0})]
    assert ["requests", "finished", "0", "1"] in lines
    assert ["requests", "cut", "off", "0", "1"] in lines
    assert lines[-2:] == [["req-1", "waiting", "abort"], ["req-2", "waiting", "cut", "off"]]


def test_each_side_has_its_own_figures() -> None:
    recorded, predicted = EngineState(), EngineState()
    for state, num_waiting in ((recorded, 5), (predicted, 7)):
        for event in (engine_info(), arrival(1), step(0, stats=stats(num_waiting=num_waiting))):
            state.apply(event)
    predicted.apply(arrival(2))
    lines = [line.split() for line in side_by_side(recorded, predicted)]
    assert ["waiting", "5", "7"] in lines
    assert lines[-1] == ["req-2", "not", "there", "waiting"]


@pytest.mark.parametrize(
    ("count", "listed", "last"),
    [
        (0, 0, "each request has the same status"),
        (1, 1, "req-0 not there waiting"),
        (20, 20, "req-19 not there waiting"),
        (21, 20, "and 1 other request of another status"),
        (23, 20, "and 3 other requests of another status"),
    ],
)
def test_twenty_requests_of_another_status_are_listed(count: int, listed: int, last: str) -> None:
    recorded, predicted = EngineState(), EngineState()
    for state in (recorded, predicted):
        state.apply(engine_info())
        state.apply(step(0, stats=stats(num_running=1_000, num_used_blocks=7, num_preemptions=2)))
    for number in range(count):
        predicted.apply(arrival(number))
    lines = side_by_side(recorded, predicted)
    assert lines[0].endswith(", side by side:")
    assert [line.split() for line in lines[1:9]] == [
        ["A:", "recorded", "B:", "PREDICTION"],
        ["steps", "1", "1"],
        ["requests", "finished", "0", "0"],
        ["output", "tokens", "0", "0"],
        ["running", "1,000", "1,000"],
        ["waiting", "0", "0"],
        ["used", "blocks", "7", "7"],
        ["preemptions", "2", "2"],
    ]
    assert all(line[:2].isspace() and line[2].isalpha() for line in lines[2:9]), "left"
    assert sum("not there" in line for line in lines) == listed
    assert " ".join(lines[-1].split()) == last


def test_a_request_that_was_cut_off_and_dropped_counts_from_its_time_on() -> None:
    recorded, predicted = EngineState(), EngineState(max_finished=0)
    for event in (engine_info(), arrival(1), step(0)):
        recorded.apply(event)
        predicted.apply(event)
    (request,) = predicted.requests.values()
    aborted = SequenceStatus.FINISHED_ABORTED
    predicted.apply(
        RequestFinished(request_id="req-1", time=100.5, status=aborted, metrics=request.metrics)
    )
    assert (predicted.time, predicted.requests) == (100.5, {})
    for time, status in ((100.5, "cut off"), (100.25, "cut off"), (100.75, "not there")):
        assert side_by_side(recorded, predicted, {"req-1": time})[-1].endswith(status)
    before = side_by_side(recorded, predicted, {"req-1": 100.75})
    assert not any("cut off" in line for line in before)
