"""Keyframes: what they contain, and those that contradict themselves."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from seqtop.history import keyframe
from seqtop.state import EngineState, RequestState, Span
from seqtop.wire import codec
from seqtop.wire.arrays import Ints
from seqtop.wire.errors import WireError
from tests.support.events import arrival, engine_info
from tests.support.recordings import assert_same, encoded, fed
from tests.support.reducer_events import finish, metrics, prefilled

SHORT = encoded(2, 120)


def restored(encoded_keyframes: list[keyframe.EncodedKeyframe]) -> list[EngineState]:
    """The states of consecutive keyframes of one timeline."""
    finished = [request for frame in encoded_keyframes for request in frame.finished]
    return [keyframe.restore(frame.data, finished.__getitem__) for frame in encoded_keyframes]


def test_a_finished_request_is_stored_once() -> None:
    encoder = keyframe.KeyframeEncoder(bytes)
    state = fed(SHORT)
    first, second = encoder.encode(state), encoder.encode(state)
    assert len(first.finished) == len(state.finished) > 2
    assert (first.first_finished, first.lowest_finished) == (0, 0)
    assert (second.finished, second.lowest_finished) == ([], 0)
    for copy in restored([first, second]):
        assert_same(copy, state)


@pytest.mark.parametrize("count", [100, 101, 115, 116, 200])
def test_any_number_of_requests_comes_back(count: int) -> None:
    """They are encoded in parts of a hundred, whose heads have one byte or three."""
    state = EngineState()
    state.apply(engine_info())
    for number in range(count):
        state.apply(arrival(number))
    (copy,) = restored([keyframe.KeyframeEncoder(bytes).encode(state)])
    assert len(copy.requests) == count
    assert_same(copy, state)


def test_a_request_that_changed_after_its_end_is_stored_again_with_those_after_it() -> None:
    encoder = keyframe.KeyframeEncoder(bytes)
    before, state = fed(SHORT), fed(SHORT)
    first = encoder.encode(state)
    name = state.finished[1]
    state.requests[name] = deepcopy(state.requests[name])
    state.requests[name].num_preemptions += 7
    second = encoder.encode(state)
    assert [finished.request.request_id for finished in second.finished] == state.finished[1:]
    copies = restored([first, second])
    assert_same(copies[0], before)
    assert_same(copies[1], state)


def test_requests_that_finished_in_another_order_keep_it() -> None:
    encoder = keyframe.KeyframeEncoder(bytes)
    state = fed(SHORT)
    first = encoder.encode(state)
    state.finished.reverse()
    second = encoder.encode(state)
    assert_same(restored([first, second])[1], state)


@pytest.mark.parametrize(
    "damage",
    [
        lambda frame: frame.requests.append(10**6),
        lambda frame: frame.requests.append(frame.requests[0]),
        lambda frame: frame.requests.append(-1),
        lambda frame: frame.requests.pop(),
        lambda frame: setattr(frame, "requests", Ints.of([])),
        lambda frame: setattr(frame, "unfinished", msgspec.Raw(b"\x80\x80")),
        lambda frame: setattr(frame, "unfinished", msgspec.Raw(codec.encode(fed(SHORT)))),
    ],
)
def test_keyframe_that_contradicts_itself_is_refused(damage: Callable[[Any], object]) -> None:
    state = fed(SHORT)
    encoded_frame = keyframe.KeyframeEncoder(bytes).encode(state)
    stored = dict(enumerate(encoded_frame.finished))

    def finished(number: int) -> keyframe.FinishedRequest:
        if number not in stored:
            raise WireError("not stored")
        return stored[number]

    assert_same(keyframe.restore(encoded_frame.data, finished), state)
    frame = codec.decode(encoded_frame.data, keyframe.Keyframe)
    damage(frame)
    with pytest.raises(WireError):
        keyframe.restore(codec.encode(frame), finished)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: setattr(entry.request, "finish_reason", None),
        lambda entry: entry.request.spans.clear(),
        lambda entry: entry.request.seq_ids.append(10**6),
        lambda entry: setattr(entry.sequences[0], "request_id", "another"),
    ],
)
def test_finished_request_that_contradicts_itself_is_refused(
    damage: Callable[[Any], object],
) -> None:
    entries = keyframe.KeyframeEncoder(bytes).encode(fed(SHORT)).finished
    assert keyframe.decode_finished(keyframe.encode_finished(entries)) == entries
    damage(entries[0])
    with pytest.raises(WireError, match="finished request"):
        keyframe.decode_finished(keyframe.encode_finished(entries))


def unfinished() -> EngineState:
    """The state of one running request, as the part of a keyframe that is an `EngineState`."""
    state = prefilled()
    assert restored_from(state) == state
    return state


def restored_from(state: EngineState) -> EngineState:
    """Restores a keyframe whose unfinished requests are those of `state`."""
    frame = keyframe.Keyframe(
        msgspec.Raw(codec.encode(state)), Ints.of([-1] * len(state.requests)), state.max_finished
    )
    none: dict[int, keyframe.FinishedRequest] = {}
    return keyframe.restore(codec.encode(frame), none.__getitem__)


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
        (lambda state: state.finished.append("a"), "the list of finished requests does not fit"),
        (finish, "a finished request has no number"),
        (lambda state: state.num_by_status.reverse(), "the counts by status do not add up"),
    ],
)
def test_unfinished_requests_that_contradict_themselves_are_refused(
    break_it: Callable[[EngineState], object], reason: str
) -> None:
    state = unfinished()
    break_it(state)
    with pytest.raises(WireError, match=f"keyframe: {reason}"):
        restored_from(state)
