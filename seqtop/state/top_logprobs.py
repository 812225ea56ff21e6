"""Candidate tokens of an output in packed form: a few bytes for each, and no object.

A `dict` and a `Logprob` for each token of a finished request take a hundred times as much as its
text. They are made again for the tokens that are shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from seqtop.sequence import Logprob
from seqtop.wire.arrays import Floats, Ints

_NO_RANK = 0
"""Ranks begin with 1."""
_NO_TEXT = -1


class TopLogprobs(msgspec.Struct, array_like=True, gc=False):
    """The candidates of output tokens, by index of the token in the output.

    The fields are the packed form; `get` and `set` are its interface.
    """

    places: Ints = msgspec.field(default_factory=partial(Ints, "h"))
    """Indexes of the output tokens that have candidates, in ascending order."""
    ends: Ints = msgspec.field(default_factory=partial(Ints, "h"))
    """For each of `places`, the number of candidates up to its last one."""
    text_ends: Ints = msgspec.field(default_factory=partial(Ints, "h"))
    """For each of `places`, the bytes of `texts` up to those of its last candidate."""
    token_ids: Ints = msgspec.field(default_factory=partial(Ints, "h"))
    """Token ids of all candidates; the arrays below have an element for each, too."""
    logprobs: Floats = msgspec.field(default_factory=partial(Floats, "f"))
    ranks: Ints = msgspec.field(default_factory=partial(Ints, "h"))
    """Ranks in the vocabulary, from 1; 0 if unknown."""
    text_lengths: Ints = msgspec.field(default_factory=partial(Ints, "b"))
    """Bytes of the texts in UTF-8; -1 for a candidate without one."""
    texts: bytearray = msgspec.field(default_factory=bytearray)
    """The texts of all candidates, joined, in UTF-8."""

    def __post_init__(self) -> None:
        """Checks what was decoded.

        Raises:
            ValueError: The arrays contradict each other.
        """
        num_candidates = len(self.token_ids)
        fits = (
            len(self.places) == len(self.ends) == len(self.text_ends)
            and num_candidates == len(self.logprobs) == len(self.ranks) == len(self.text_lengths)
            and (self.ends[-1] if self.ends else 0) == num_candidates
            and (self.text_ends[-1] if self.text_ends else 0) == len(self.texts)
        )
        if not fits:
            raise ValueError("the arrays of candidate tokens differ in length")

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def num_bytes(self) -> int:
        """The bytes of the packed form."""
        arrays = (
            self.places, self.ends, self.text_ends, self.token_ids, self.logprobs, self.ranks,
            self.text_lengths,
        )  # fmt: skip
        return sum(len(array) * array.itemsize for array in arrays) + len(self.texts)

    def get(self, place: int) -> dict[int, Logprob]:
        """Returns the candidates of an output token, by token id; empty if it has none."""
        index = bisect_left(self.places, place)
        if index == len(self.places) or self.places[index] != place:
            return {}
        start, text_start = (self.ends[index - 1], self.text_ends[index - 1]) if index else (0, 0)
        candidates: dict[int, Logprob] = {}
        for number in range(max(start, 0), min(self.ends[index], len(self.token_ids))):
            length, text = self.text_lengths[number], None
            if length != _NO_TEXT:
                text_end = text_start + length
                text = self.texts[text_start:text_end].decode(errors="replace")
                text_start = text_end
            candidates[self.token_ids[number]] = Logprob(
                self.logprobs[number], self.ranks[number] or None, text
            )
        return candidates

    def set(self, first: int, candidates: Iterable[Mapping[int, Logprob]]) -> None:
        """Sets the candidates of the output tokens from index `first` on."""
        self._drop_from(first)
        for place, by_token in enumerate(candidates, first):
            values = by_token.values()
            decoded = [value.decoded_token for value in values]
            texts = [None if text is None else text.encode(errors="replace") for text in decoded]
            self.token_ids = self.token_ids.plus([*by_token])
            self.logprobs = self.logprobs.plus([value.logprob for value in values])
            self.ranks = self.ranks.plus([value.rank or _NO_RANK for value in values])
            self.text_lengths = self.text_lengths.plus(
                [_NO_TEXT if text is None else len(text) for text in texts]
            )
            self.texts += b"".join(filter(None, texts))
            self.places = self.places.plus([place])
            self.ends = self.ends.plus([len(self.token_ids)])
            self.text_ends = self.text_ends.plus([len(self.texts)])

    def copy(self) -> TopLogprobs:
        """Returns a copy, which changes separately."""
        return TopLogprobs(*(getattr(self, name).copy() for name in self.__struct_fields__))

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
        if not self.places or self.places[-1] < place:
            return
        index = bisect_left(self.places, place)
        num_left, num_bytes = (self.ends[index - 1], self.text_ends[index - 1]) if index else (0, 0)
        for by_place in (self.places, self.ends, self.text_ends):
            del by_place[index:]
        for by_candidate in (self.token_ids, self.logprobs, self.ranks, self.text_lengths):
            del by_candidate[num_left:]
        del self.texts[num_bytes:]
