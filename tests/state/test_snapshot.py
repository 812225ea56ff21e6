"""Snapshots: loading, and the finished requests of the state before."""

import pytest

from seqtop.sequence import (
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.state.snapshot import carry_finished, load, share_finished
from seqtop.wire import codec
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    RequestFinished,
)
from tests.support.reducer_events import arrived, metrics, prefilled


def test_snapshot_round_trip_is_equal() -> None:
    state = prefilled()
    assert load(codec.encode(state), max_finished=state.max_finished) == state


def test_history_of_an_older_state_is_kept_in_front() -> None:
    old = prefilled()
    old.apply(
        RequestFinished(
            request_id="a", time=21.0, status=SequenceStatus.FINISHED_ABORTED, metrics=metrics()
        )
    )
    new = EngineState()
    new.apply(arrived("b", 2))
    carry_finished(new, old)
    assert list(new.requests) == ["a", "b"]
    assert new.finished == ["a"]
    assert set(new.sequences) == {1, 2}
    assert sum(new.num_by_status) == 2


def test_equal_finished_requests_are_shared() -> None:
    old, new = prefilled(), prefilled()
    for state in (old, new):
        state.apply(arrived("b", 2))
        for name in ("a", "b"):
            state.apply(
                RequestFinished(
                    request_id=name,
                    time=21.0,
                    status=SequenceStatus.FINISHED_ABORTED,
                    metrics=metrics(),
                )
            )
    new.sequences[2].text += "!"
    share_finished(new, old)
    assert new.requests["a"] is old.requests["a"]
    assert new.sequences[1] is old.sequences[1]
    assert new.requests["b"] is not old.requests["b"]


def test_a_state_that_contradicts_itself_is_refused() -> None:
    state = prefilled()
    state.num_by_status[0] += 1
    with pytest.raises(WireError, match="counts by status"):
        load(codec.encode(state), max_finished=8)
    state = prefilled()
    del state.sequences[1]
    with pytest.raises(WireError, match="sequence 1 is missing"):
        load(codec.encode(state), max_finished=8)
