"""Two runs side by side at one time."""

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
