"""Snapshots: loading, and the finished requests of the state before."""

import contextlib
import gc

import pytest

from seqtop.sequence import (
    SequenceStatus,
)
from seqtop.state import EngineState, snapshot
from seqtop.state.snapshot import SnapshotLoader, StatePart, carry_finished, load
from seqtop.wire import codec
from seqtop.wire.element_count import MAX_ELEMENTS, count_elements
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    RequestFinished,
)
from tests.support.recordings import encoded, fed
from tests.support.reducer_events import arrived, metrics, prefilled

SCRIPT = encoded(2, 120)


def test_snapshot_round_trip_is_equal() -> None:
    state = prefilled()
    assert load(codec.encode(state), max_finished=state.max_finished) == state


def test_parts_are_merged_and_no_entry_comes_twice() -> None:
    whole = prefilled()
    first, more = prefilled(), StatePart(whole.requests, whole.sequences)
    first.requests, first.sequences = {}, {}
    loader = SnapshotLoader(codec.encode(first))
    loader.add(codec.encode(more))
    with pytest.raises(WireError, match="a request is in it twice"):
        loader.add(codec.encode(more))
    assert loader.end(max_finished=whole.max_finished) == whole


@pytest.mark.parametrize("num_too_many", [0, 1])
def test_the_elements_of_all_parts_are_limited_together(
    num_too_many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = codec.encode(prefilled())
    more = codec.encode(StatePart(cached_blocks={}))
    num_elements = sum(count_elements(each, MAX_ELEMENTS) for each in (first, more))
    monkeypatch.setattr(snapshot, "MAX_STATE_ELEMENTS", num_elements - num_too_many)
    assert len(first) > num_elements, "it is large enough to be counted"
    loader = SnapshotLoader(first)
    with (
        contextlib.nullcontext()
        if not num_too_many
        else pytest.raises(WireError, match="more than")
    ):
        loader.add(more)


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


def test_a_state_that_contradicts_itself_is_refused() -> None:
    state = prefilled()
    state.num_by_status[0] += 1
    with pytest.raises(WireError, match="counts by status"):
        load(codec.encode(state), max_finished=8)
    state = prefilled()
    del state.sequences[1]
    with pytest.raises(WireError, match="sequence 1 is missing"):
        load(codec.encode(state), max_finished=8)


def test_only_equal_finished_requests_are_shared() -> None:
    old, new = fed(SCRIPT), fed(SCRIPT)
    same, other = new.finished[0], new.finished[1]
    new.sequences[new.requests[other].seq_ids[0]].text += "!"
    snapshot.share_finished(new, old)
    assert new.requests[same] is old.requests[same]
    assert new.requests[other] is not old.requests[other]
    waiting = next(name for name in new.requests if name not in new.finished)
    assert new.requests[waiting] is not old.requests[waiting]


def test_the_garbage_collector_is_on_again_after_loading() -> None:
    assert gc.isenabled()
    snapshot.load(codec.encode(fed(SCRIPT)), max_finished=1)
    assert gc.isenabled()
    with pytest.raises(WireError):
        snapshot.load(b"\x81", max_finished=1)
    assert gc.isenabled()
