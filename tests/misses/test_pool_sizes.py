"""Pools of several sizes in one queue, beside one pool of each size with a queue of its own."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from seqtop.misses.pool_sizes import PoolSizes

SIZES = (3, 4, 6, 10, 16)
AT_LIMITS = [(2**bits).to_bytes(8, "little") for bits in (61, 62, 63)]
"""The first contents that samples of 1/8, 1/4 and 1/2 do not have."""


class SeparatePools:
    """Pools that share nothing but what they are told: the plainest form of `PoolSizes`."""

    def __init__(self, sizes: Sequence[int], *, queues_empty: bool, max_contents: int) -> None:
        self.rate = 1.0
        self.has_forgotten = False
        self.sizes = sizes
        self._queues_empty, self._max_contents = queues_empty, max_contents
        self._queues: list[list[bytes | int]] = [[] for _ in sizes]
        """For each size what is not in use, the first one freed first; empty blocks as numbers."""
        self._uses: Counter[bytes] = Counter()
        self._computed: dict[bytes, int] = {}
        """The first size that has computed a content, which all the larger ones have, too."""
        self._evicted: list[bytes | int] = []
        self._num_empty = 0.0
        self._number = 0

    @property
    def num_followed(self) -> int:
        queued = sum(isinstance(item, bytes) for item in self._queues[-1])
        return len(self._uses) + queued + len(self._evicted)

    def follows(self, content: bytes) -> bool:
        return int.from_bytes(content, "little") / 2**64 < self.rate

    def holds(self, content: bytes) -> bool:
        return content in self._uses

    def find(self, content: bytes) -> int | None:
        if content in self._uses:
            return self._computed[content]
        for index, queue in enumerate(self._queues):
            if content in queue and index >= self._computed[content]:
                return index
        return len(self.sizes) if content in self._evicted else None

    def hold(self, content: bytes, first_size: int) -> None:
        if not self.follows(content):
            return
        if content in self._uses:
            self._computed[content] = min(self._computed[content], first_size)
        else:
            self._remove(lambda item: item == content)
            self._computed[content] = first_size
        self._uses[content] += 1
        while self.num_followed > self._max_contents:
            self._halve()

    def mark_computed(self, content: bytes) -> None:
        if content in self._uses:
            self._computed[content] = 0

    def release(self, content: bytes | None) -> None:
        if content is None:
            self._release_empty()
        elif content in self._uses:
            self._uses[content] -= 1
            if not self._uses[content]:
                del self._uses[content]
                if self._computed[content] == len(self.sizes):
                    self._release_empty()
                else:
                    self._join(content)

    def use(self, num_blocks: int) -> None:
        self._evict([max(size - num_blocks, 0) * self.rate for size in self.sizes])

    def clear(self) -> None:
        self._evict([0.0] * len(self.sizes))

    def _evict(self, rooms: Sequence[float]) -> None:
        for queue, room in zip(self._queues, rooms, strict=True):
            while len(queue) > room:
                item = queue.pop(0)
                if queue is self._queues[-1] and isinstance(item, bytes):
                    self._evicted.append(item)
        while len(self._evicted) > self._max_contents // 2:
            self._evicted.pop(0)
            self.has_forgotten = True

    def _release_empty(self) -> None:
        if self._queues_empty:
            self._num_empty += self.rate
            if self._num_empty >= 1:
                self._num_empty -= 1
                self._number += 1
                self._join(self._number)

    def _join(self, item: bytes | int) -> None:
        for queue in self._queues:
            queue.append(item)

    def _remove(self, is_removed: Callable[[bytes | int], bool]) -> None:
        for queue in (*self._queues, self._evicted):
            queue[:] = [item for item in queue if not is_removed(item)]

    def _halve(self) -> None:
        self.rate /= 2
        empty = [item for item in self._queues[-1] if isinstance(item, int)]
        dropped = {*empty[::2]}
        self._remove(
            lambda item: item in dropped if isinstance(item, int) else not self.follows(item)
        )
        for content in [own for own in self._uses if not self.follows(own)]:
            del self._uses[content]


@pytest.mark.parametrize("queues_empty", [False, True])
@pytest.mark.parametrize(
    ("max_contents", "least_rate"), [(200, 1.0), (40, 1.0), (24, 0.5), (12, 0.25)]
)
def test_one_queue_finds_what_separate_pools_find(
    queues_empty: bool, max_contents: int, least_rate: float
) -> None:
    """After every one of random operations, for each content."""
    rates, forgotten = set(), set()
    found: Counter[int | None] = Counter()
    for seed in range(8):
        rng = random.Random(seed)
        contents = [rng.randbytes(8) for _ in range(57)] + AT_LIMITS
        pools = PoolSizes(SIZES, queues_empty=queues_empty, max_contents=max_contents)
        plain = SeparatePools(SIZES, queues_empty=queues_empty, max_contents=max_contents)
        uses: list[bytes | None] = []
        for _ in range(250):
            content = rng.choice(contents)
            match rng.randrange(12):
                case 0:
                    pools.mark_computed(content)
                    plain.mark_computed(content)
                case 1 | 2 | 3 | 4 | 5 if len(uses) < SIZES[-1]:
                    known = plain.find(content)
                    least = len(SIZES) if known is None else known
                    first_size = rng.choice((0, least, rng.randrange(len(SIZES) + 1)))
                    for each in (pools, plain):
                        each.hold(content, first_size)
                    uses.append(content)
                case 6 if len(uses) < SIZES[-1]:
                    uses.append(None)
                case 7 if rng.random() < 0.1:
                    pools.clear()
                    plain.clear()
                case _ if uses:
                    released = uses.pop(rng.randrange(len(uses)))
                    pools.release(released)
                    plain.release(released)
            if rng.random() < 0.5:
                pools.use(len(uses))
                plain.use(len(uses))
            assert [pools.find(own) for own in contents] == [plain.find(own) for own in contents]
            assert [pools.holds(own) for own in contents] == [plain.holds(own) for own in contents]
            assert (pools.rate, pools.num_followed) == (plain.rate, plain.num_followed)
            assert pools.has_forgotten == plain.has_forgotten
            assert pools.num_followed <= max_contents
            found.update(pools.find(own) for own in contents)
        assert [*map(pools.follows, contents)] == [*map(plain.follows, contents)]
        rates.add(pools.rate)
        forgotten.add(pools.has_forgotten)
    assert min(rates) == least_rate
    assert found.keys() == {None, *range(len(SIZES) + 1)}
    assert any(forgotten) == (max_contents < 200)
