"""The misses of a run's prefix cache: by cause, by admission, over time and for larger pools.

Fed with the events of a timeline in order, from any position on. The memory is bounded: the newest
admissions are kept, and sums over time whose resolution falls as the run becomes longer.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, get_args

from seqtop.history.replay import Reader, Replay, ShowProgress, no_progress
from seqtop.history.timeline import Timeline
from seqtop.misses.nearest_prefix import NearestPrefixes, PrefixDifference
from seqtop.misses.pool_replay import GROWTH, PoolReplay, unknown_reason
from seqtop.misses.pool_sizes import MAX_CONTENTS, PoolSizes
from seqtop.state import EngineState, SequenceState
from seqtop.wire.messages import Event, MissCause, PrefixMiss, Step

MAX_LOOKUPS = 5_000
"""Admissions that are kept."""
MAX_ROWS = 20_000
"""Rows of the sums over time: 4 MB."""
CAUSES: tuple[MissCause, ...] = get_args(MissCause)
_MAX_STEPS = 2**17
"""Steps of which the number of taken blocks is kept."""
_MAX_TOKENS = 2**40
"""Tokens of one admission that are believed: the sums of many fit their columns, of 64 bits."""

_SIZE_NAMES = tuple(f"+{percent}%" for percent in GROWTH[1:])
_COLUMNS = ("lookups", "blocks", "hits", "again", "new", "larger", "unexplained", "differing")
"""The sums of `Totals`, in its order."""


class Needed(NamedTuple):
    """Consecutive missed blocks that one size of the pool would have found."""

    num_blocks: int
    percent: int
    """The smallest growth of the pool, one of `GROWTH`."""


class Lookup(NamedTuple):
    """An admission of a sequence, as the prefix cache found it."""

    number: int
    """The number of the admission, from 1."""
    position: int
    """The position on the timeline of the step."""
    step: int
    time: float
    request_id: str
    seq_id: int
    num_tokens: int
    num_hit_tokens: int
    misses: Sequence[PrefixMiss]
    """The tokens that were not found, in order."""
    reused_after: Sequence[int | None]
    """For each of `misses`, the blocks that were taken from the pool since the step of an eviction;
    `None` if there was none, or it is unknown."""
    needed: Sequence[Needed]
    """Missed blocks that larger pools would have found, in order."""
    is_again: bool
    """True after a preemption."""
    difference: PrefixDifference | None
    """The first difference to the nearest cached prefix, if one begins as the sequence does, and
    what follows was not evicted."""

    @property
    def num_missed_tokens(self) -> int:
        """The tokens that were not found."""
        return sum(miss.num_tokens for miss in self.misses)

    @property
    def main_cause(self) -> MissCause | None:
        """The cause of the most missed tokens; that of the last block if there is no other."""
        sums: Counter[MissCause] = Counter()
        for miss in self.misses:
            sums[miss.cause] += miss.num_tokens
        if len(sums) > 1:
            sums.pop("partial_block", None)
        return max(sums, key=sums.__getitem__, default=None)


class CurvePoint(NamedTuple):
    """The misses of a pool with more blocks, at the first admissions of requests.

    How many there are after preemptions depends on how often requests are preempted, which only a
    scheduler decides.
    """

    percent: int
    """Percent of the recorded blocks more."""
    num_gpu_blocks: int
    num_missed_blocks: int


class Totals(NamedTuple):
    """Sums from the start up to a moment. Numbers of blocks are of full ones.

    `num_new`, `num_larger`, `num_unexplained` and `needed` divide the missed blocks of first
    admissions.
    """

    num_lookups: int
    num_blocks: int
    num_hits: int
    num_again: int
    """Blocks that were missed when a preempted request was admitted again."""
    num_new: int
    """Missed blocks whose content no request had had."""
    num_larger: int
    """Missed blocks that all sizes of `GROWTH` have evicted."""
    num_unexplained: int
    """Missed blocks of which no size is known."""
    num_differing: int
    """Blocks that the repeated pool of the recorded size has, and the engine's had not, or the
    other way round."""
    tokens: dict[MissCause, int]
    """Missed tokens by cause, without causes that did not occur."""
    needed: Sequence[int]
    """Missed blocks by the smallest of the sizes `GROWTH[1:]` that would have found them."""

    @property
    def num_missed(self) -> int:
        """Blocks that were not found."""
        return self.num_blocks - self.num_hits

    @property
    def num_missed_first(self) -> int:
        """Those of them that were not looked up after a preemption."""
        return self.num_missed - self.num_again

    def misses(self) -> list[int]:
        """Returns the missed blocks of first admissions for each of `GROWTH`.

        Where contents are sampled, the sample stands for all.
        """
        left = self.num_new + self.num_larger + self.num_unexplained + sum(self.needed)
        scale = self.num_missed_first / max(left, 1)
        missed = [self.num_missed_first]
        for found in self.needed:
            left -= found
            missed.append(round(left * scale))
        return missed


class CacheMisses(Reader):
    """The misses of one timeline.

    Args:
        max_contents: The most contents of blocks that are followed.
        max_lookups: The most admissions that are kept.
        max_rows: The most rows of sums.
    """

    def __init__(
        self,
        *,
        max_contents: int = MAX_CONTENTS,
        max_lookups: int = MAX_LOOKUPS,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.lock = threading.RLock()
        """Guards all below: one thread reads events, another one shows what they say."""
        self.lookups: deque[Lookup] = deque(maxlen=max_lookups)
        """The newest admissions, the oldest first."""
        self.reason = unknown_reason(None)
        """The reason why the misses of larger pools are not known; empty if they are."""
        self.num_gpu_blocks = 0
        self.block_size = 0
        self.starts_late = False
        """True if the content of the cache at the start is not known in full."""
        self.rate = 1.0
        """The share of the contents that is followed."""
        self.num_impossible = 0
        """Admissions left out because their numbers of tokens are negative or too large."""
        self._max_contents, self._max_rows = max_contents, max_rows
        self._state: EngineState | None = None
        self._incarnation: str | None = None
        """The run of the engine before the event that is read."""
        self._pool: PoolReplay | None = None
        self._nearest = NearestPrefixes()
        self._steps: list[int] = []
        self._taken: list[int] = []
        """The blocks that were taken up to the end of each of `_steps`."""
        self._positions = array("q")
        self._times = array("d")
        names: tuple[str, ...] = (*_COLUMNS, *CAUSES, *_SIZE_NAMES)
        self._sums = {name: array("q") for name in names}
        self._row = dict.fromkeys(names, 0)
        """The sums so far."""

    def start(self, position: int, state: EngineState) -> None:
        """Starts, or continues after a gap, from the state at a position, which events change."""
        with self.lock:
            self.starts_late = self.starts_late or state.step >= 0
            self._begin(state)

    def stop(self) -> None:
        """Stops at a gap, until the next `start`."""
        with self.lock:
            self._state = self._pool = None

    def before(self, event: Event) -> None:
        """Releases what a step takes from sequences before others are admitted in it."""
        state, pool = self._state, self._pool
        assert state is not None, "`start` comes first"
        self._incarnation = state.info.incarnation if state.info is not None else None
        if pool is None or not isinstance(event, Step):
            return
        with self.lock:
            for preemption in event.preemptions:
                request = state.requests.get(preemption.request_id)
                for seq_id in request.seq_ids if request is not None else ():
                    pool.release(seq_id)
            if any(call.name == "reset_prefix_cache" for call in event.control_calls):
                pool.pools.clear()

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads the next event after it was applied to the state."""
        state = self._state
        assert state is not None, "`start` comes first"
        with self.lock:
            if isinstance(event, Step):
                self._step(position, state, event, touched)
            elif state.info is not None and state.info.incarnation != self._incarnation:
                self._begin(state)
            elif self._pool is not None:
                self._release_ended(state, self._pool, touched)

    def totals(self, position: int | None = None) -> Totals:
        """Returns the sums up to a position on the timeline; by default of all that was read."""
        with self.lock:
            row = len(self._positions) if position is None else self._row_at(position)
            sums = {name: column[row - 1] if row else 0 for name, column in self._sums.items()}
        tokens = {cause: sums[cause] for cause in CAUSES if sums[cause]}
        needed = [sums[name] for name in _SIZE_NAMES]
        lookups, blocks, hits, again, new, larger, unexplained, differing = (
            sums[name] for name in _COLUMNS
        )
        return Totals(
            lookups, blocks, hits, again, new, larger, unexplained, differing, tokens, needed
        )

    def curve(self, totals: Totals) -> list[CurvePoint]:
        """Returns the misses of each size of the pool; nothing if they are not known."""
        if self.reason:
            return []
        return [
            CurvePoint(percent, self.num_gpu_blocks + self._num_usable * percent // 100, num_missed)
            for percent, num_missed in zip(GROWTH, totals.misses(), strict=True)
        ]

    def tokens_between(self, start: float, end: float) -> dict[MissCause, int]:
        """Returns the missed tokens by cause from `start` to `end`, epoch seconds."""
        with self.lock:
            low, high = bisect_right(self._times, start), bisect_right(self._times, end)
            if high == low:
                return {}
            sums = {}
            for cause in CAUSES:
                column = self._sums[cause]
                sums[cause] = column[high - 1] - (column[low - 1] if low else 0)
        return {cause: count for cause, count in sums.items() if count}

    def span(self, position: int | None = None) -> tuple[float, float] | None:
        """Returns the times of the first and the last admission up to a position."""
        with self.lock:
            row = len(self._positions) if position is None else self._row_at(position)
            return (self._times[0], self._times[row - 1]) if row else None

    def until(self, position: int | None = None) -> list[Lookup]:
        """Returns the kept admissions with misses up to a position, the newest first."""
        with self.lock:
            kept = [*self.lookups]
        if position is not None:
            kept = kept[: bisect_right(kept, position, key=attrgetter("position"))]
        kept.reverse()
        return kept

    @property
    def _num_usable(self) -> int:
        return self._pool.pools.sizes[0] if self._pool is not None else self.num_gpu_blocks

    def _row_at(self, position: int) -> int:
        return bisect_right(self._positions, position)

    def _begin(self, state: EngineState) -> None:
        info = state.info
        self.reason = unknown_reason(info)
        self._state, self._pool = state, None
        self._nearest = NearestPrefixes()
        del self._steps[:], self._taken[:]
        if info is not None:
            self.num_gpu_blocks, self.block_size = info.num_gpu_blocks, info.block_size
            if not self.reason:
                self._pool = PoolReplay(state, info, max_contents=self._max_contents)

    def _step(self, position: int, state: EngineState, step: Step, touched: Sequence[int]) -> None:
        pool = self._pool
        admitted: dict[int, list[PrefixMiss]] = {
            update.seq_id: update.prefix_misses
            for update in step.sequences
            if update.prefix_misses is not None and update.seq_id in state.sequences
        }
        if pool is not None:
            for seq_id in touched:  # those that run get their blocks before others are admitted
                sequence = state.sequences.get(seq_id)
                if sequence is not None and sequence.block_table and seq_id not in admitted:
                    pool.extend(sequence)
        for seq_id, misses in admitted.items():
            self._admit(position, step, state, state.sequences[seq_id], misses)
        if pool is not None:
            for seq_id in touched:
                if (sequence := state.sequences.get(seq_id)) is not None:
                    pool.compute(sequence)
            self._release_ended(state, pool, touched)
            self.rate = pool.pools.rate
            self._steps.append(step.step)
            self._taken.append(pool.num_taken)
            if len(self._steps) > _MAX_STEPS:
                del self._steps[: _MAX_STEPS // 2], self._taken[: _MAX_STEPS // 2]
        if admitted:
            self._append(position, step.time)

    def _admit(
        self,
        position: int,
        step: Step,
        state: EngineState,
        sequence: SequenceState,
        misses: Sequence[PrefixMiss],
    ) -> None:
        num_hits = max(sequence.num_cached_tokens - sequence.num_external_tokens, 0)
        num_missed = sum(miss.num_tokens for miss in misses)
        num_tokens = max(sequence.num_cached_tokens, 0) + num_missed
        if num_tokens > _MAX_TOKENS or any(miss.num_tokens < 0 for miss in misses):
            self.num_impossible += 1
            return
        request = state.requests[sequence.request_id]
        is_again = request.num_preemptions > 0
        needed: list[Needed] = []
        difference = None
        reused_after = [self._reused_after(miss) for miss in misses]
        for miss in misses:
            self._row[miss.cause] += miss.num_tokens
        self._row["lookups"] += 1
        if (pool := self._pool) is not None:
            num_blocks = max(num_tokens - 1, 0) // self.block_size
            num_found = min(num_hits // self.block_size, num_blocks)
            is_looked_up = not any(miss.cause == "not_cacheable" for miss in misses)
            hashes = pool.hashes(sequence, num_blocks) if is_looked_up else ()
            sizes = pool.first_sizes(hashes)
            if is_looked_up:
                needed = self._count(
                    pool, hashes, sizes, num_blocks, num_found, misses, is_again=is_again
                )
                if misses and misses[0].cause != "evicted":
                    difference = self._nearest.difference(state, pool, sequence, hashes, num_found)
                self._nearest.add(state, sequence, hashes)
            pool.admit(sequence, num_tokens, num_found, sizes)
        if num_missed:
            self.lookups.append(
                Lookup(
                    self._row["lookups"],
                    position,
                    step.step,
                    step.time,
                    sequence.request_id,
                    sequence.seq_id,
                    num_tokens,
                    num_hits,
                    misses,
                    reused_after,
                    needed,
                    is_again,
                    difference,
                )
            )

    def _count(
        self,
        pool: PoolReplay,
        hashes: Sequence[bytes],
        sizes: Sequence[int | None],
        num_blocks: int,
        num_found: int,
        misses: Sequence[PrefixMiss],
        *,
        is_again: bool,
    ) -> list[Needed]:
        """Adds a lookup to the sums; returns the sizes that would have found what it missed."""
        row, pools = self._row, pool.pools
        weight = round(1 / pools.rate)
        row["blocks"] += num_blocks
        row["hits"] += num_found
        if is_again:
            row["again"] += num_blocks - num_found
        row["differing"] += sum(size != 0 for size in sizes[:num_found])
        needed: list[Needed] = []
        causes = _causes_of_blocks(misses, self.block_size)
        if not is_again:  # of the blocks behind these, the tokens are not known
            row["unexplained"] += weight * (num_blocks - max(len(hashes), num_found))
        for position in range(num_found, len(hashes)):
            cause = next(causes, None)
            if not pools.follows(hashes[position]):
                continue
            size = sizes[position]
            row["differing"] += size == 0
            if is_again:
                continue
            if size is None and cause != "evicted":
                row["new"] += weight
            elif size == len(GROWTH) or (size is None and self._forgets(pools)):
                row["larger"] += weight
            elif not size:  # it was there before the first event
                row["unexplained"] += weight
            else:
                row[_SIZE_NAMES[size - 1]] += weight
                if needed and needed[-1].percent == GROWTH[size]:
                    needed[-1] = Needed(needed[-1].num_blocks + weight, GROWTH[size])
                else:
                    needed.append(Needed(weight, GROWTH[size]))
        return needed

    def _forgets(self, pools: PoolSizes) -> bool:
        """Returns whether content of which nothing is known has been forgotten, and was known."""
        return pools.has_forgotten and not self.starts_late

    def _reused_after(self, miss: PrefixMiss) -> int | None:
        """Returns the blocks that were taken since an eviction."""
        if miss.cause != "evicted" or miss.step is None or self._pool is None:
            return None
        index = bisect_left(self._steps, miss.step)
        if index == len(self._steps) or self._steps[index] != miss.step:
            return None
        return self._pool.num_taken - self._taken[index]

    def _release_ended(self, state: EngineState, pool: PoolReplay, touched: Iterable[int]) -> None:
        """Frees the blocks of sequences that have none any more."""
        for seq_id in touched:
            sequence = state.sequences.get(seq_id)
            if sequence is None or not sequence.block_table:
                if sequence is not None:
                    self._nearest.add(state, sequence, pool.full_hashes(seq_id))
                pool.release(seq_id)

    def _append(self, position: int, time: float) -> None:
        """Appends a row with the sums after a step."""
        time = max(time, self._times[-1]) if self._times else time
        self._positions.append(position)
        self._times.append(time)
        for name, column in self._sums.items():
            column.append(self._row[name])
        if len(self._times) > self._max_rows:
            half = len(self._times) // 4 * 2
            self._times[:half] = self._times[1:half:2]
            for column in (self._positions, *self._sums.values()):
                column[:half] = column[1:half:2]


def _causes_of_blocks(misses: Sequence[PrefixMiss], block_size: int) -> Iterator[MissCause]:
    """Yields the cause of each missed block; runs of tokens begin and end with blocks."""
    for miss in misses:
        yield from itertools.repeat(miss.cause, miss.num_tokens // block_size)


class BackgroundMisses(CacheMisses):
    """The misses of a timeline, which one thread reads while another shows them.

    Args:
        timeline: The timeline.
    """

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.replay = Replay(timeline, [self])
        """Reads the timeline."""


def read_misses(timeline: Timeline, progress: ShowProgress = no_progress) -> CacheMisses:
    """Returns the misses of a whole timeline.

    Raises:
        RecordingError: A part of it cannot be read.
    """
    misses = CacheMisses()
    Replay(timeline, [misses]).run(progress)
    return misses
