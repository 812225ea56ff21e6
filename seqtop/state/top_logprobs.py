"""Candidate tokens of an output in packed form: a few bytes for each, and no object.

A `dict` and a `Logprob` for each token of a finished request take a hundred times as much as its
text. They are made again for the tokens that are shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

import msgspec

from seqtop.sequence import Logprob
from seqtop.wire.arrays import Ints

_Candidate: TypeAlias = tuple[int, float, int | None, str | None]
"""A token id, and the fields of a `Logprob`."""
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[_Candidate])


class TopLogprobs(msgspec.Struct, array_like=True, gc=False):
    """The candidates of output tokens, by index of the token in the output.

    The fields are the packed form; `get` and `set` are its interface.
    """

    places: Ints = msgspec.field(default_factory=partial(Ints, "h"))
    """Indexes of the output tokens that have candidates, in ascending order."""
    ends: Ints = msgspec.field(default_factory=partial(Ints, "h"))
    """For each of `places`, the bytes of `packed` up to the end of its candidates."""
    packed: bytearray = msgspec.field(default_factory=bytearray)
    """For each of `places`, a list of candidates in MessagePack."""

    def __post_init__(self) -> None:
        """Checks what was decoded.

        Raises:
            ValueError: The fields contradict each other.
        """
        end = self.ends[-1] if self.ends else 0
        if len(self.places) != len(self.ends) or end != len(self.packed):
            raise ValueError("the arrays of candidate tokens differ in length")

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def num_bytes(self) -> int:
        """The bytes of the packed form."""
        return sum(len(array) * array.itemsize for array in (self.places, self.ends)) + len(
            self.packed
        )

    def get(self, place: int) -> dict[int, Logprob]:
        """Returns the candidates of an output token, by token id; empty if it has none."""
        index = bisect_left(self.places, place)
        if index == len(self.places) or self.places[index] != place:
            return {}
        start = self.ends[index - 1] if index else 0
        try:
            candidates = _decoder.decode(self.packed[max(start, 0) : max(self.ends[index], 0)])
        except msgspec.MsgspecError:  # a keyframe may have anything there
            return {}
        return {
            token_id: Logprob(logprob, rank, text) for token_id, logprob, rank, text in candidates
        }

    def set(self, first: int, candidates: Iterable[Mapping[int, Logprob]]) -> None:
        """Sets the candidates of the output tokens from index `first` on."""
        self._drop_from(first)
        ends = []
        for by_token in candidates:
            fields = [
                (token_id, value.logprob, value.rank, value.decoded_token)
                for token_id, value in by_token.items()
            ]
            _encoder.encode_into(fields, self.packed, -1)
            ends.append(len(self.packed))
        self.places = self.places.plus(range(first, first + len(ends)))
        self.ends = self.ends.plus(ends)

    def copy(self) -> TopLogprobs:
        """Returns a copy, which changes separately."""
        return TopLogprobs(self.places.copy(), self.ends.copy(), self.packed.copy())

    def by_place(self) -> dict[int, dict[int, Logprob]]:
        """Returns all candidates, by index of the output token."""
        return {place: self.get(place) for place in self.places}

    @classmethod
    def of(cls, by_place: Mapping[int, Mapping[int, Logprob]]) -> TopLogprobs:
        """Returns the packed form of what `by_place` returns."""
        packed = cls()
        for place in sorted(by_place):
            packed.set(place, [by_place[place]])
        return packed

    def _drop_from(self, place: int) -> None:
        """Removes the candidates of the output tokens from index `place` on."""
        if self.places and self.places[-1] >= place:
            index = bisect_left(self.places, place)
            del self.packed[self.ends[index - 1] if index else 0 :]
            del self.places[index:], self.ends[index:]
