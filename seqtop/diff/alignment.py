"""Two runs with their requests and steps aligned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from seqtop.diff.run import RunDecisions, StepDecisions
from seqtop.diff.same_requests import pair

Ignored: TypeAlias = Literal["arrivals", "tokens"]
"""A kind of differences that is not compared."""

MAX_NAMED = 4
"""Requests that a sentence names."""
_MIN_EQUAL = 3
"""Equal steps in a row, with which two runs meet again."""
_FIRST_WINDOW = 16
"""Steps in which the next equal ones are looked for first; each further window is twice as long."""


class Alignment:
    """Two runs, and the requests of the second by their numbers in the first."""

    def __init__(self, a: RunDecisions, b: RunDecisions, ignored: Iterable[Ignored] = ()) -> None:
        self.a, self.b = a, b
        self.ignored = frozenset(ignored)
        # The fields of a step from `arrived` to `tokens`.
        self._first = 3 if "arrivals" in self.ignored else 2
        self._last = 10 if "tokens" in self.ignored else 11
        self.pairs = pair(a.requests, b.requests)
        """The requests that both runs have."""
        unknown = len(a.requests)
        self._of_b = {
            number: self.pairs.of_a.get(number, unknown + number)
            for number in range(len(b.requests))
        }
        self._in_b = {of_a: number for number, of_a in self.pairs.of_a.items()}
        self._is_identity = all(number == of_a for number, of_a in self._of_b.items())

    def num_equal(self, at_a: int, at_b: int) -> int:
        """Returns the number of equal steps from those at two indices on."""
        a, b, first, last = self.a.steps, self.b.steps, self._first, self._last
        most = min(len(a) - at_a, len(b) - at_b)
        for number in range(most):
            one, other = a[at_a + number], self.of_b(b[at_b + number])
            if one[first:last] != other[first:last] or (one.arrived and self._has_changed(one)):
                return number
        return most

    def is_equal(self, at_a: int, at_b: int) -> bool:
        """Returns whether the steps at two indices have the same decisions."""
        one, other = self.a.steps[at_a], self.of_b(self.b.steps[at_b])
        if one[self._first : self._last] != other[self._first : self._last]:
            return False
        return not self._has_changed(one)

    def _has_changed(self, step: StepDecisions) -> bool:
        """Returns whether a request that arrived before a step is another one in the second run."""
        if "arrivals" in self.ignored:
            return False
        return any(self.find_changed(number) for number in step.arrived)

    def next_equal(self, at_a: int, at_b: int) -> tuple[int, int] | None:
        """Returns the indices of the next steps, from two indices on, where the runs meet again.

        Some steps in a row are equal there. It takes time in proportion to the number of steps up
        to there.
        """
        left = max(len(self.a.steps) - at_a, len(self.b.steps) - at_b)
        window = _FIRST_WINDOW
        while (nearest := self._nearest_equal(at_a, at_b, window)) is None and window < left:
            window *= 2
        return nearest

    def _nearest_equal(self, at_a: int, at_b: int, window: int) -> tuple[int, int] | None:
        """Returns the nearest indices where the runs meet again, within so many steps of each."""
        a, b = self.a.steps, self.b.steps
        of_decisions = {
            hash(self.of_b(b[index])[self._first : self._last]): index
            for index in range(min(at_b + window, len(b)) - 1, at_b - 1, -1)
        }
        best: tuple[int, int] | None = None  # steps that both skip, and by how many they differ
        nearest: tuple[int, int] | None = None
        for index in range(at_a, min(at_a + window, len(a) - _MIN_EQUAL + 1)):
            if best is not None and index - at_a > best[0]:
                break
            other = of_decisions.get(hash(a[index][self._first : self._last]), -1)
            for place in (at_b + index - at_a, other):  # equal steps may repeat: first the same one
                skipped = index - at_a, place - at_b
                rank = max(skipped), abs(skipped[0] - skipped[1])
                if 0 <= place <= len(b) - _MIN_EQUAL and (best is None or rank < best):
                    pairs = zip(
                        range(index, index + _MIN_EQUAL), range(place, len(b)), strict=False
                    )
                    if all(self.is_equal(*pair) for pair in pairs):
                        best, nearest = rank, (index, place)
        return nearest

    def find_changed(self, number: int) -> tuple[str, int, int] | None:
        """Returns a property of a request in which the runs differ, with its values."""
        of_b = self._in_b.get(number)
        if of_b is None:
            return None
        one, other = self.a.requests[number], self.b.requests[of_b]
        for name in ("num_prompt_tokens", "priority"):
            values = getattr(one, name), getattr(other, name)
            if values[0] != values[1]:
                return name, *values
        return None

    def of_b(self, step: StepDecisions) -> StepDecisions:
        """Returns a step of the second run with the numbers of the first."""
        if self._is_identity:
            return step
        of_b = self._of_b
        return step._replace(
            arrived=tuple(of_b[number] for number in step.arrived),
            ended=tuple(sorted((of_b[number], status) for number, status in step.ended)),
            preempted=tuple(
                (of_b[number], None if for_ is None else of_b[for_], mode)
                for number, for_, mode in step.preempted
            ),
            admitted=tuple((of_b[number], cached) for number, cached in step.admitted),
            chunks=tuple((of_b[number], chunk) for number, chunk in step.chunks),
            decodes=tuple(of_b[number] for number in step.decodes),
            waits=tuple((of_b[number], cause, missing) for number, cause, missing in step.waits),
        )

    def is_in_both(self, number: int) -> bool:
        """Returns whether both runs have a request, given by its number in the first."""
        return number in self._in_b

    def name(self, number: int) -> str:
        """Returns the id of a request in the first run, or in the second if only that has it."""
        requests = self.a.requests
        if number < len(requests):
            return requests[number].request_id
        return self.b.requests[number - len(requests)].request_id

    def names(self, numbers: Sequence[int]) -> str:
        """Returns the ids of some requests, and the number of further ones."""
        if not numbers:
            return "none"
        more = f" and {len(numbers) - MAX_NAMED} more" if len(numbers) > MAX_NAMED else ""
        return ", ".join(map(self.name, numbers[:MAX_NAMED])) + more
