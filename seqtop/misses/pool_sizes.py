"""A prefix cache simulated with several sizes of the pool at once, on the schedule of one run.

A block is in use, or waits in a queue to be taken for other content; the one that was freed first
is at the head. A pool takes as many from the head as it lacks room for. So at any time a larger
pool has all contents that a smaller one has: one queue is enough for all sizes, with a mark for
each behind what that size has evicted. An access is a hit for the sizes whose mark is not behind
its number in the queue, which is its stack distance (Mattson et al., *Evaluation techniques for
storage hierarchies*, IBM Systems Journal, 1970) where blocks in use count, too.

Many contents are sampled by their hashes: at a rate of 1/4 the queue has a quarter of them, and
each pool a quarter of its room (Waldspurger et al., *Cache Modeling and Optimization using
Miniature Simulations*, USENIX ATC 2017). The rate falls as they become more, so that the memory is
bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MAX_CONTENTS = 2**17
"""Contents that are followed: two million tokens with blocks of 16, and up to 60 MB."""
_HASH_RANGE = 2**64
_EMPTY = b""
"""The content of a block that nobody can reuse."""


class PoolSizes:
    """Pools of several sizes to which the same happens.

    Contents are hashes of at least 8 bytes.

    Args:
        sizes: The numbers of blocks, in ascending order.
        queues_empty: True if blocks without content wait in the queue like all others, as in vLLM;
            false if they are taken first.
        max_contents: The most contents that are followed.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        queues_empty: bool = False,
        max_contents: int = MAX_CONTENTS,
    ) -> None:
        self.sizes = tuple(sizes)
        self.rate = 1.0
        """The share of the contents that is followed: 1, 1/2, 1/4 and so on."""
        self._queues_empty = queues_empty
        self._max_contents = max_contents
        self._num_empty = 0.0
        """Freed blocks without content that are not in the queue yet, as a part of one."""
        self._next = 0
        """The number of the next content that joins the queue."""
        self._queue: dict[int, bytes] = {}
        """The contents in the queue by their numbers, in ascending order."""
        self._numbers: dict[bytes, int] = {}
        """The numbers of contents in the queue."""
        self._first = [0] * len(self.sizes)
        """For each size, the lowest number that it has not evicted."""
        self._counts = [0] * len(self.sizes)
        """For each size, the blocks in the queue from there on."""
        self._held: dict[bytes, list[int]] = {}
        """For each content in use, the number of uses, and the first size that has computed it."""
        self._computed: dict[bytes, int] = {}
        """The same size for contents in the queue, where it is not the smallest."""
        self._evicted: dict[bytes, None] = {}
        """Contents that the largest pool has evicted, too, the first one evicted first."""
        self.has_forgotten = False
        """True if contents that all pools have evicted count as contents that none has had."""

    @property
    def num_followed(self) -> int:
        """The contents that are followed."""
        return len(self._held) + len(self._numbers) + len(self._evicted)

    def follows(self, content: bytes) -> bool:
        """Returns whether a content is in the sample."""
        return _hash_number(content) < self.rate * _HASH_RANGE

    def holds(self, content: bytes) -> bool:
        """Returns whether a content is in use."""
        return content in self._held

    def find(self, content: bytes) -> int | None:
        """Returns the index of the smallest size that has a content.

        It is the number of sizes if all have evicted it, and `None` if none has had it.
        """
        if (held := self._held.get(content)) is not None:
            return held[1]
        number = self._numbers.get(content)
        if number is None:
            return len(self.sizes) if content in self._evicted else None
        # The larger a pool, the lower its mark.
        index = bisect_left(self._first, -number, key=lambda first: -first)
        return max(index, self._computed.get(content, 0))

    def hold(self, content: bytes, first_size: int = 0) -> None:
        """Takes a content into use.

        Args:
            content: The content.
            first_size: The index of the first size that need not compute it.
        """
        if not self.follows(content):
            return
        if (held := self._held.get(content)) is not None:
            held[0] += 1
            held[1] = min(held[1], first_size)
            return
        self._leave_queue(content)
        self._computed.pop(content, None)
        self._evicted.pop(content, None)
        self._held[content] = [1, first_size]
        while self.num_followed > self._max_contents:
            self._halve_sample()

    def mark_computed(self, content: bytes) -> None:
        """Notes that pools of all sizes have computed a content that is in use."""
        if (held := self._held.get(content)) is not None:
            held[1] = 0

    def release(self, content: bytes | None) -> None:
        """Ends a use of a block; after its last use it joins the queue.

        Args:
            content: Its content; `None` if it has none that can be reused.
        """
        if content is None:
            self._release_empty()
            return
        if (held := self._held.get(content)) is None:
            return  # it is not in the sample
        held[0] -= 1
        if held[0]:
            return
        del self._held[content]
        if held[1] >= len(self.sizes):
            self._release_empty()  # it was never computed
            return
        if held[1]:
            self._computed[content] = held[1]
        self._numbers[content] = self._next
        self._join_queue(content)

    def use(self, num_blocks: int) -> None:
        """Sets the number of blocks in use. Pools without room for them evict contents."""
        queue = self._queue
        for index, size in enumerate(self.sizes):
            room = max(size - num_blocks, 0) * self.rate
            number, count = self._first[index], self._counts[index]
            while count > room:
                count -= number in queue
                number += 1
            self._first[index], self._counts[index] = number, count
        self._drop_evicted()

    def clear(self) -> None:
        """Evicts everything that is not in use, from pools of all sizes."""
        self._first = [self._next] * len(self.sizes)
        self._counts = [0] * len(self.sizes)
        self._drop_evicted()

    def _release_empty(self) -> None:
        if not self._queues_empty:
            return
        self._num_empty += self.rate
        if self._num_empty >= 1.0:
            self._num_empty -= 1.0
            self._join_queue(_EMPTY)

    def _join_queue(self, content: bytes) -> None:
        self._queue[self._next] = content
        self._next += 1
        self._counts = [count + 1 for count in self._counts]

    def _leave_queue(self, content: bytes) -> None:
        number = self._numbers.pop(content, None)
        if number is not None:
            self._remove(number)

    def _remove(self, number: int) -> None:
        del self._queue[number]
        marks = zip(self._counts, self._first, strict=True)
        self._counts = [count - (first <= number) for count, first in marks]

    def _drop_evicted(self) -> None:
        """Removes from the queue what the largest pool has evicted."""
        queue, last = self._queue, self._first[-1]
        while queue and (number := next(iter(queue))) < last:
            content = queue.pop(number)
            if content != _EMPTY:
                del self._numbers[content]
                self._computed.pop(content, None)
                self._evicted[content] = None
        while len(self._evicted) > self._max_contents // 2:
            del self._evicted[next(iter(self._evicted))]
            self.has_forgotten = True

    def _halve_sample(self) -> None:
        self.rate /= 2
        limit = self.rate * _HASH_RANGE
        for contents in (self._held, self._computed, self._evicted):
            for content in [content for content in contents if _hash_number(content) >= limit]:
                del contents[content]
        for content in [content for content in self._numbers if _hash_number(content) >= limit]:
            self._leave_queue(content)
        empty = [number for number, content in self._queue.items() if content == _EMPTY]
        for number in empty[::2]:
            self._remove(number)


def _hash_number(content: bytes) -> int:
    """Returns the number of a hash, below `_HASH_RANGE`; all are equally likely."""
    return int.from_bytes(content[:8], "little")
