"""Candidate tokens in packed form."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import Logprob
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.wire import codec
from seqtop.wire.arrays import Ints
from seqtop.wire.errors import WireError

LOGPROBS = st.builds(
    Logprob,
    st.floats(allow_nan=False),
    st.none() | st.integers(1, 2**40),
    st.none() | st.text(max_size=200),
)
CANDIDATES = st.dictionaries(st.integers(0, 2**40), LOGPROBS, max_size=4)


@given(st.dictionaries(st.integers(0, 2**20), CANDIDATES, max_size=5))
def test_packing_loses_nothing(by_place: dict[int, dict[int, Logprob]]) -> None:
    packed = TopLogprobs.of(by_place)
    assert packed.by_place() == by_place
    decoded = codec.decode(codec.encode(packed), TopLogprobs)
    assert decoded == packed == packed.copy()
    assert all(packed.get(place) == candidates for place, candidates in by_place.items())
    assert packed.get(2**21) == {}


@given(st.lists(st.lists(CANDIDATES, min_size=1, max_size=3), max_size=4))
def test_tokens_that_arrive_one_after_another_are_added(steps: list[list[Any]]) -> None:
    packed = TopLogprobs()
    wanted: list[Any] = []
    for candidates in steps:
        packed.set(len(wanted), candidates)
        wanted += candidates
    assert packed.by_place() == dict(enumerate(wanted))


def test_tokens_that_arrive_again_replace_those_from_there_on() -> None:
    first = {place: {place: Logprob(-1.0, 1, "é")} for place in range(3)}
    packed = TopLogprobs.of(first)
    copy = packed.copy()
    packed.set(1, [{7: Logprob(-math.inf, None, "new")}])
    assert packed.by_place() == {0: first[0], 1: {7: Logprob(-math.inf, None, "new")}}
    assert copy.by_place() == first, "a copy stays as it was"


def test_a_candidate_takes_few_bytes() -> None:
    texts = {token: Logprob(-0.5 * token, token + 1, " the") for token in range(5)}
    packed = TopLogprobs.of(dict.fromkeys(range(100), texts))
    assert packed.num_bytes < 100 * 5 * 25


@pytest.mark.parametrize(
    "fields",
    [
        {"places": Ints("h", [0])},
        {"ends": Ints("h", [0])},
        {"packed": bytearray(b"x")},
    ],
)
def test_arrays_that_contradict_each_other_are_refused(fields: dict[str, Any]) -> None:
    broken = TopLogprobs()
    for name, value in fields.items():
        setattr(broken, name, value)
    with pytest.raises(WireError, match="the arrays of candidate tokens differ in length"):
        codec.decode(codec.encode(broken), TopLogprobs)


@pytest.mark.parametrize("end", [-9, 1, 99])
def test_contents_that_are_none_do_no_harm(end: int) -> None:
    broken = TopLogprobs.of({0: {1: Logprob(-1.0, 1, "a")}, 1: {2: Logprob(-1.0, 1, "b")}})
    broken.ends[0] = end
    decoded = codec.decode(codec.encode(broken), TopLogprobs)
    assert decoded.get(0) == {}
    decoded.by_place()
    decoded.set(1, [{3: Logprob(-1.0)}])
    decoded.by_place()
