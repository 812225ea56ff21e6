"""Numbers that are to be seen to, a few at a time. Adding many costs little more than copying."""

from collections.abc import Iterable


class Backlog:
    """Each number once, however often it is added; all that are in it come before later ones."""

    def __init__(self) -> None:
        self._now: set[int] = set()
        self._later: set[int] = set()
        """What has been added since `_now` was begun with, and is not in it."""

    def __len__(self) -> int:
        return len(self._now) + len(self._later)

    def clear(self) -> None:
        self._now, self._later = set(), set()

    def add(self, numbers: Iterable[int]) -> None:
        added = set(numbers)
        if self:
            self._later |= added - self._now
        else:
            self._now = added

    def discard(self, number: int) -> bool:
        """Take a number out; returns whether it was there."""
        for each in (self._now, self._later):
            if number in each:
                each.remove(number)
                return True
        return False

    def take(self, most: int) -> list[int]:
        """Take out so many numbers, fewer if there are no more."""
        taken: list[int] = []
        while len(taken) < most and self:
            if not self._now:
                self._now, self._later = self._later, set()
            count = min(most - len(taken), len(self._now))
            taken += [self._now.pop() for _ in range(count)]
        return taken
