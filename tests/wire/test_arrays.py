"""Arrays of numbers: they lose nothing, their bytes are specified, malformed ones are refused."""

import copy
import math
import struct
import sys
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import SequenceData
from seqtop.state import EngineState, SequenceState, snapshot
from seqtop.state.model import RequestState
from seqtop.wire import arrays, codec, parsing
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.errors import WireError
from seqtop.wire.messages import RequestArrived
from seqtop.wire.snapshot import RequestSnapshot, SequenceSnapshot, Snapshot
from tests.support.events import update
from tests.support.random_engine import RandomEngine

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.sampled_from("bhiq"), st.lists(st.lists(st.integers(-300, 300) | INT64)))
def test_integers_are_kept_whatever_their_size(code: str, parts: list[list[int]]) -> None:
    numbers = Ints(code)
    for part in parts:
        numbers = numbers.plus(part)
    assert numbers == [value for part in parts for value in part]
    assert decoded(numbers) == numbers


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False) | st.floats(allow_nan=False))))
def test_floats_are_kept_to_the_bit(parts: list[list[float]]) -> None:
    numbers = Floats("f")
    for part in parts:
        numbers = numbers.plus(part)
    assert numbers == [value for part in parts for value in part]
    assert decoded(numbers) == numbers


def decoded(numbers: Ints | Floats) -> object:
    return codec.decode(codec.encode(numbers), type(numbers))


def test_arrays_are_as_narrow_as_what_is_in_them() -> None:
    assert Ints("b").plus([127, -128]).typecode == "b"
    assert Ints("b").plus([128]).typecode == "h"
    assert Ints.of([2**31 - 1]).typecode == "i"
    assert Ints.of([-(2**31) - 1]).typecode == "q"
    assert Floats.of([-0.5, math.inf]).typecode == "f"
    assert Floats.of([-0.1]).typecode == "d"
    assert math.isnan(Floats.of([math.nan])[0])


def test_numbers_that_no_machine_number_holds_are_cut_down() -> None:
    assert Ints("b").plus([2**70, 1, -(2**70)]) == [2**63 - 1, 1, -(2**63)]


def test_the_same_numbers_are_equal_and_others_are_not() -> None:
    assert Ints("b").plus([1]) == Ints("q").plus([1]) == [1]
    assert Floats.of([0.5]) == [0.5]
    assert Ints.of([1]) != [2]
    assert Ints.of([1]) != [1, 1]
    assert Floats.of([0.5]) != "0.5"


@pytest.mark.parametrize("numbers", [Ints.of([1]), Ints("b").plus([1]), Floats.of([0.1])])
def test_copies_are_arrays_of_their_own(numbers: Ints | Floats) -> None:
    for taken in (numbers.copy(), copy.copy(numbers), copy.deepcopy(numbers)):
        assert type(taken) is type(numbers)
        assert (taken.typecode, taken) == (numbers.typecode, numbers)
        taken.append(2)
        assert len(numbers) == 1


def test_the_bytes_are_what_the_protocol_says() -> None:
    assert codec.encode(Ints.of([1, -2])) == b"\xd7i" + struct.pack("<2i", 1, -2)
    assert codec.encode(Ints("b").plus([4, -1])) == b"\xd5b\x04\xff"
    assert codec.encode(Floats.of([-0.5])) == b"\xd6f" + struct.pack("<f", -0.5)
    assert codec.encode(Floats.of([0.1])) == b"\xd7d" + struct.pack("<d", 0.1)


def test_machines_of_the_other_byte_order_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "big" if sys.byteorder == "little" else "little"
    numbers = Ints.of([1, -2])
    numbers.byteswap()  # as it lies in the memory of such a machine
    monkeypatch.setattr(arrays, "_IS_BIG", other == "big")
    encoded = codec.encode(numbers)
    assert encoded == b"\xd7i" + struct.pack(">2i" if other == "little" else "<2i", 1, -2)
    assert codec.decode(encoded, Ints).tobytes() == numbers.tobytes()


@pytest.mark.parametrize(
    ("field", "sent", "said"),
    [
        ("output_token_ids", msgspec.msgpack.Ext(ord("i"), b"1234567"), "7 bytes"),
        ("output_token_ids", msgspec.msgpack.Ext(ord("d"), bytes(8)), "array of ints"),
        ("output_token_ids", bytes(8), "array of ints"),
        ("output_token_ids", ["1"], "integer"),
        ("output_token_ids", [1.5], "integer"),
        ("output_logprobs", msgspec.msgpack.Ext(ord("q"), bytes(8)), "array of floats"),
        ("output_logprobs", [None], "real number"),
        ("text_lengths", {}, "array of ints"),
        ("text_lengths", None, "array of ints"),
    ],
)
def test_a_field_that_is_no_array_is_refused_by_name(field: str, sent: object, said: str) -> None:
    state = {"sequences": {7: {"seq_id": 7, "request_id": "a", field: sent}}}
    with pytest.raises(WireError, match=rf"sequences\[\.\.\.\]\.{field}: .*{said}"):
        codec.decode(msgspec.msgpack.encode(state), EngineState)


@pytest.mark.parametrize("field", ["output_token_ids", "output_logprobs"])
def test_a_field_of_a_snapshot_that_is_no_array_is_refused_by_name(field: str) -> None:
    sequence = SequenceSnapshot(update=update(7), **{field: {}})  # type: ignore[arg-type]
    whole = snapshot.take(EngineState())
    arrival = RequestArrived(request_id="a", arrival_time=0.0, seq_ids=[7], num_prompt_tokens=1)
    whole.requests = [RequestSnapshot(arrival=arrival, sequences=[sequence])]
    with pytest.raises(WireError, match=rf"{field}: .*array of"):
        parsing.reply(codec.encode(whole))


def test_an_unknown_extension_is_refused() -> None:
    with pytest.raises(WireError, match="unknown extension type 99"):
        codec.decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(99, b"")), Ints)


def test_token_ids_of_vllms_own_types_are_no_arrays() -> None:
    sent = codec.encode(SequenceData.from_seqs([1, 2])).replace(b"\xc4\x10", b"\xd8i")
    with pytest.raises(WireError):
        codec.decode(sent, SequenceData)


def test_lists_are_arrays_too() -> None:
    """As engines send them that have none."""
    sequence = codec.decode(
        msgspec.msgpack.encode(
            {"seq_id": 1, "request_id": "a", "output_token_ids": [3, 2**40], "text_lengths": [-1]}
            | {"output_logprobs": [-1, -0.1]}
        ),
        SequenceState,
    )
    assert sequence.output_token_ids == [3, 2**40]
    assert sequence.output_logprobs == [-1.0, -0.1]
    assert sequence.text_lengths.plus([3]) == [-1, 3]


def test_snapshots_in_lists_are_the_same_snapshots() -> None:
    """As engines send them that have no arrays."""
    state, events = EngineState(), list(RandomEngine(11, 150))
    for event in events[:100]:
        state.apply(event)
    in_lists = msgspec.msgpack.encode(snapshot.take(state), enc_hook=list)
    loaded = load(in_lists)
    loaded.max_finished = state.max_finished
    assert loaded == state
    for event in events[100:]:
        payload = codec.encode(event)
        state.apply(parsing.event(payload))
        loaded.apply(parsing.event(payload))
    assert loaded == state
    assert loaded.num_anomalies == 0


def load(encoded: bytes) -> EngineState:
    """The state of a viewer that receives this snapshot."""
    reply, state = parsing.reply(encoded), EngineState()
    assert isinstance(reply, Snapshot)
    state.apply(reply)
    return state


def test_joining_makes_no_object_for_each_token() -> None:
    few, many = (encoded_state(num_tokens=number) for number in (200, 20_000))
    load(few)  # what is made once is made
    (few_blocks, few_bytes), (many_blocks, many_bytes) = loading(few), loading(many)
    assert many_blocks - few_blocks < 1_000, "objects that stay, of 400,000 tokens more"
    # Arrays of 4, 4, 4 and 1 bytes for each, and little beside them at any time.
    assert many_bytes - few_bytes < 20 * 19_800 * 13 * 1.2


def encoded_state(num_tokens: int) -> bytes:
    """A snapshot of twenty sequences with so many tokens of prompt and of output each."""
    state = EngineState()
    for event in RandomEngine(3, 40, load=20, max_running=20, num_blocks=4_000):
        state.apply(event)
    running = [request for request in state.requests.values() if request.finish_reason is None]
    for request in running[:20]:
        fill(request, state.sequences[request.seq_ids[0]], num_tokens)
    return codec.encode(snapshot.take(state))


def fill(request: RequestState, sequence: SequenceState, num_tokens: int) -> None:
    ids = [1_000 + index for index in range(num_tokens)]
    request.prompt_token_ids = sequence.output_token_ids = Ints.of(ids)
    sequence.output_logprobs = Floats.of([-index / 1_024 for index in range(num_tokens)])
    sequence.text_lengths = Ints("b").plus([4] * num_tokens)


def loading(encoded: bytes) -> tuple[int, int]:
    """The number of objects of a loaded state, and the bytes that it takes to load it."""
    before = sys.getallocatedblocks()
    state = load(encoded)
    blocks = sys.getallocatedblocks() - before
    del state
    tracemalloc.start()
    try:
        load(encoded)
        return blocks, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
