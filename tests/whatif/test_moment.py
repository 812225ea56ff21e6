"""Two runs side by side at one time."""

from seqtop.state import EngineState
from seqtop.whatif.moment import side_by_side
from tests.support.events import arrival, engine_info, stats, step


def test_each_side_has_its_own_figures() -> None:
    recorded, predicted = EngineState(), EngineState()
    for state, num_waiting in ((recorded, 5), (predicted, 7)):
        for event in (engine_info(), arrival(1), step(0, stats=stats(num_waiting=num_waiting))):
            state.apply(event)
    predicted.apply(arrival(2))
    lines = [line.split() for line in side_by_side(recorded, predicted)]
    assert ["waiting", "5", "7"] in lines
    assert lines[-1] == ["req-2", "not", "there", "waiting"]
