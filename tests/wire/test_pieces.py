"""States encoded bit by bit: the same bytes as at once, and turns for others in between."""

import msgspec
import pytest
from event_script import EventScript

from seqtop.state import EngineState
from seqtop.wire import codec, pieces
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Heartbeat


class Two(msgspec.Struct):
    entries: dict[int, str]
    name: str = "two"


def encoded(struct: object, pauses: list[float] | None = None) -> bytes:
    buffer = bytearray(b"head")
    pieces.encode_into(buffer, struct, pause=(pauses if pauses is not None else []).append)
    assert buffer.startswith(b"head")
    return bytes(buffer[4:])


def test_a_state_comes_out_as_if_it_were_encoded_whole() -> None:
    state = EngineState()
    for number, event in enumerate(EventScript(3, 200)):
        state.apply(event)
        if number % 40 == 0:
            assert encoded(state) == codec.encode(state)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 300, 70_000])
def test_dictionaries_of_any_length(count: int) -> None:
    struct = Two(dict.fromkeys(range(count), "x"))
    assert encoded(struct) == codec.encode(struct)


def test_others_have_their_turn_more_often_the_more_there_is() -> None:
    few, many = [], []
    encoded(Two(dict.fromkeys(range(100), "x" * 1000)), few)
    encoded(Two(dict.fromkeys(range(50000), "x" * 1000)), many)
    assert set(few) == {pieces.PAUSE_SECONDS}
    assert len(many) > len(few) > 3


def test_what_is_no_map_is_encoded_whole() -> None:
    beat = Heartbeat(time=1.0, step=2)
    assert encoded(beat) == codec.encode(beat)
    assert encoded([1, 2]) == codec.encode([1, 2])


def test_what_has_no_form_on_the_wire_is_a_wire_error() -> None:
    with pytest.raises(WireError):
        encoded(Two({1: object()}))  # type: ignore[dict-item]
