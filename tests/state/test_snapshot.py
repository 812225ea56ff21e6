"""Snapshots: loading, and the finished requests of the state before."""

import contextlib
import gc
from collections.abc import Callable

import pytest

from seqtop.sequence import (
    SequenceStatus,
)
from seqtop.state import EngineState, RequestState, Span, snapshot
from seqtop.state.model import CachedBlock
from seqtop.state.snapshot import SnapshotLoader, StatePart, carry_finished, load
from seqtop.wire import codec
from seqtop.wire.element_count import MAX_ELEMENTS, count_elements
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    RequestFinished,
)
from tests.support.recordings import encoded, fed
from tests.support.reducer_events import arrived, finish, metrics, prefilled

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


def finished_request() -> EngineState:
    state = prefilled()
    finish(state)
    return state


def add_request(state: EngineState, seq_ids: list[int]) -> None:
    state.requests["b"] = RequestState("b", metrics(), seq_ids, spans=[Span("queued", 1.0, None)])


def rename_request(state: EngineState) -> None:
    state.requests["b"] = state.requests.pop("a")


def move_sequence(state: EngineState) -> None:
    state.sequences[2] = state.sequences.pop(1)


def change_owner(state: EngineState) -> None:
    state.sequences[1].request_id = "b"


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (rename_request, "request 'b' is malformed"),
        (lambda state: state.requests["a"].spans.clear(), "request 'a' is malformed"),
        (lambda state: state.requests["a"].seq_ids.append(1), "request 'a' is malformed"),
        (lambda state: add_request(state, [1]), "sequence 1 belongs to two requests"),
        (lambda state: add_request(state, [2]), "sequence 2 is missing"),
        (lambda state: state.sequences.clear(), "sequence 1 is missing"),
        (move_sequence, "sequence 2 is not one of its request's"),
        (change_owner, "sequence 1 is not one of its request's"),
        (lambda state: state.requests["a"].seq_ids.clear(), "sequence 1 is not one of"),
        (lambda state: state.finished.clear(), "the list of finished requests does not fit"),
        (lambda state: state.finished.append("a"), "the list of finished requests does not fit"),
        (lambda state: state.num_by_status.reverse(), "the counts by status do not add up"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(
    break_it: Callable[[EngineState], object], reason: str
) -> None:
    state = finished_request()
    break_it(state)
    with pytest.raises(WireError, match=reason):
        load(codec.encode(state), max_finished=8)


def test_cached_blocks_come_in_parts_too() -> None:
    whole, block = prefilled(), CachedBlock("a", 1, 0)
    whole.cached_blocks = {7: block}
    loader = SnapshotLoader(codec.encode(whole))
    loader.add(codec.encode(StatePart(cached_blocks={8: block})))
    with pytest.raises(WireError, match="a cached block is in it twice"):
        loader.add(codec.encode(StatePart(cached_blocks={7: block})))
    assert loader.end(max_finished=5).cached_blocks == {7: block, 8: block}
    unknown = SnapshotLoader(codec.encode(prefilled()))
    unknown.add(codec.encode(StatePart(cached_blocks={8: block})))
    assert unknown.end(max_finished=5).cached_blocks is None


def test_the_viewer_sets_how_many_finished_requests_stay() -> None:
    assert load(codec.encode(prefilled()), max_finished=8).max_finished == 8


def test_only_equal_finished_requests_are_shared() -> None:
    old, new = fed(SCRIPT), fed(SCRIPT)
    same, other = new.finished[0], new.finished[1]
    new.sequences[new.requests[other].seq_ids[0]].text += "!"
    snapshot.share_finished(new, old)
    assert new.requests[same] is old.requests[same]
    for seq_id in old.requests[same].seq_ids:
        assert new.sequences[seq_id] is old.sequences[seq_id]
    assert new.requests[other] is not old.requests[other]
    waiting = next(name for name in new.requests if name not in new.finished)
    assert new.requests[waiting] is not old.requests[waiting]


def test_finished_requests_that_differ_or_are_gone_are_not_shared() -> None:
    old, other, gone = finished_request(), finished_request(), EngineState()
    other.requests["a"].priority += 1
    snapshot.share_finished(other, old)
    assert other.requests["a"] is not old.requests["a"]
    assert other.requests["a"].priority == 1
    snapshot.share_finished(gone, old)
    assert gone == EngineState()


def test_the_garbage_collector_is_on_again_after_loading() -> None:
    assert gc.isenabled()
    snapshot.load(codec.encode(fed(SCRIPT)), max_finished=1)
    assert gc.isenabled()
    with pytest.raises(WireError):
        snapshot.load(b"\x81", max_finished=1)
    assert gc.isenabled()
