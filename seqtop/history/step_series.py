"""The figures of all recorded steps over time, for charts.

The series has a row for the start and the end of each step. Its columns are sums from the first
row on, so the amount in any interval is the difference of two values. Between two rows a sum grows
linearly: the tokens of a step are spread over its duration and over the time since the step before,
unless nothing ran then. So the rates of a steady engine are steady, whatever interval one asks for.
When there are too many rows, the older half loses every second one: its sums stay exact, and only
its resolution falls.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from seqtop.history.replay import Reader
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.state import EngineState
from seqtop.state.percentiles import median
from seqtop.state.step_costs import TIME_PARTS, gap_parts, has_work, time_parts
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Event, Step, StepStats
from seqtop.wire.parsing import StepOutline, step_outline

MAX_ROWS = 50_000
"""The largest number of rows by default: 6 MB."""
MAX_EVENTS = 500
"""The most events that one `update` reads."""
MAX_BYTES = 4 * 2**20
"""The bytes of events after which an `update` ends: about ten milliseconds."""

_NEWEST = 64
"""The rows from which the time of a step is taken."""
_LEAST = 0.25
"""The shortest time in seconds of which rates are given."""

_SUMS = ("steps", "prefill", "decode", "generated", "preemptions", *TIME_PARTS)
_KINDS = (("running",), ("waiting",), ("used", "cached", "free"))
"""Gauges of one kind are of one moment: the one at which the first of them is largest."""
_GAUGES = tuple(name for names in _KINDS for name in names)
_UNKNOWN = (math.nan,) * len(_GAUGES)


class Interval(NamedTuple):
    """The figures of an interval of time."""

    seconds: float
    """The length of the interval."""
    sums: dict[str, float]
    """Numbers of `steps`, of tokens computed by `prefill` and `decode`, of `generated` tokens and
    of `preemptions`; and the seconds of each of `TIME_PARTS`.

    The time that no part takes is unknown."""
    gauges: dict[str, float]
    """The largest numbers of sequences `running` and `waiting`, and the blocks `used`, `cached` and
    `free` when most were used, as the largest of each may add up to more than there are; empty if
    they are unknown."""

    def rate(self, name: str) -> float:
        """Returns one of `sums` per second."""
        return self.sums[name] / self.seconds if self.seconds > 0 else 0.0

    def shares(self) -> dict[str, float]:
        """Returns the share of each of `TIME_PARTS` in the interval, from 0 to 1."""
        return {part: min(self.rate(part), 1.0) for part in TIME_PARTS}


class StepSeries:
    """The steps of a timeline, which may grow. Used by one thread at a time.

    Args:
        timeline: The timeline.
        max_rows: The largest number of rows.
    """

    def __init__(self, timeline: Timeline, *, max_rows: int = MAX_ROWS) -> None:
        self._timeline = timeline
        self._max_rows = max_rows
        self._position = -1
        """The last position that has been read."""
        self._first = 0
        self._last_step: int | None = None
        """The number of the last step; `None` if unknown events follow it."""
        self._had_work = False
        """True if a request was unfinished at the end of the last step."""
        self._times = array("d")
        self._sums = {name: array("d") for name in _SUMS}
        self._gauges = {name: array("d") for name in _GAUGES}
        self._is_complete = False
        """True if the last `update` has read all events."""

    def __len__(self) -> int:
        return len(self._times)

    @property
    def start(self) -> float:
        """The time of the first row, epoch seconds; 0 without rows."""
        return self._times[0] if self._times else 0.0

    @property
    def end(self) -> float:
        """The time of the last row, epoch seconds; 0 without rows."""
        return self._times[-1] if self._times else 0.0

    def step_length(self) -> float:
        """Returns the median time in seconds from row to row, twice: that of a newest step.

        A step has a row for its start and one for its end. 0 without steps.
        """
        recent = self._times[-_NEWEST:]
        gaps = (later - earlier for earlier, later in zip(recent, recent[2:], strict=False))
        return median(gaps) or 0.0

    def update(self) -> bool:
        """Reads new events, up to `MAX_EVENTS` or about `MAX_BYTES`.

        Returns:
            Whether all events have been read.
        """
        timeline = self._timeline
        with timeline.lock:
            first, last = timeline.first, timeline.last
            if first > self._first:
                self._first = first
                self._drop_before(timeline.index[first].time)
            if self._position < first:
                self.skip(first)
            stop = min(last, self._position + MAX_EVENTS)
            if stop > self._position:
                self._read(stop)
            self._is_complete = self._position >= last
        return self._is_complete

    def skip(self, position: int) -> None:
        """Continues after a position: the steps before it are unknown."""
        self._position, self._last_step = position, None

    def between(self, start: float, end: float) -> Interval:
        """Returns the figures from `start` to `end`, epoch seconds."""
        return self.intervals([(start, end)])[0]

    def intervals(self, spans: Sequence[tuple[float, float]]) -> list[Interval]:
        """Returns the figures of each of `spans`: its start and its end, epoch seconds.

        Charts ask for hundreds at once. So each sum is computed for all of them in one go.
        """
        if not self._times:
            nothing = dict.fromkeys(_SUMS, 0.0)
            return [Interval(max(end - start, 0.0), nothing, {}) for start, end in spans]
        starts = [self._locate(start) for start, _ in spans]
        ends = [self._locate(end) for _, end in spans]
        sums = [
            [
                later - earlier if later > earlier else 0.0
                for earlier, later in zip(
                    _values(column, starts), _values(column, ends), strict=True
                )
            ]
            for column in self._sums.values()
        ]
        kinds = [(names, [self._gauges[name] for name in names]) for names in _KINDS]
        result = []
        for span, (first, _), (last, _), *amounts in zip(spans, starts, ends, *sums, strict=True):
            gauges: dict[str, float] = {}
            for names, columns in kinds if span[1] > self._times[0] else ():
                parts = [column[first : last + 1] for column in columns]
                rows: Iterable[_Row] = zip(*parts, strict=True)
                if math.isnan(sum(parts[0])):  # some are unknown
                    rows = [row for row in rows if row[0] == row[0]]
                gauges.update(zip(names, max(rows, default=()), strict=False))
            figures = dict(zip(_SUMS, amounts, strict=True))
            result.append(Interval(max(span[1] - span[0], 0.0), figures, gauges))
        return result

    def before(self, time: float, seconds: float) -> Interval:
        """Returns the figures of the last `seconds` before `time`, as far as they are recorded."""
        end = max(min(time, self.end), self.start)
        return self.between(max(end - seconds, self.start), end)

    def last_second(self, time: float) -> Interval | None:
        """Returns the figures of the last whole second before `time`, epoch seconds.

        They change once a second: figures that change with every frame cannot be read. In the
        first second they are those of the time so far.

        Returns:
            `None` in the first quarter of a second, and for steps that have not been read.
        """
        seconds = self._seconds(time, 2)
        if len(seconds) < 2 or seconds[0] < self.start:
            so_far = min(time, self.end) - self.start
            return self.between(self.start, self.start + so_far) if so_far >= _LEAST else None
        is_read = self._is_complete or seconds[1] <= self.end
        return self.between(seconds[0], seconds[1]) if is_read else None

    def sums_by_second(self, name: str, time: float, count: int) -> list[float]:
        """Returns one of the sums in each of the last `count` whole seconds before `time`.

        The newest is the last. There are fewer at the beginning.
        """
        column = self._sums[name]
        sums = _values(column, [self._locate(second) for second in self._seconds(time, count + 1)])
        return [max(later - earlier, 0.0) for earlier, later in itertools.pairwise(sums)]

    def sums_at(self, name: str, times: Sequence[float]) -> list[float]:
        """Returns one of the sums from the first row up to each of `times`, epoch seconds."""
        column = self._sums[name]
        if not column:
            return [0.0 for _ in times]
        return _values(column, [self._locate(time) for time in times])

    def gauge_by_second(self, name: str, time: float, count: int) -> list[float]:
        """Returns one of the gauges at each of the last `count` whole seconds up to `time`."""
        column = self._gauges[name]
        return [column[self._locate(second)[0]] for second in self._seconds(time, count)]

    def _seconds(self, time: float, count: int) -> range:
        """Returns the last `count` whole seconds up to `time`, in epoch seconds."""
        if not self._times or not math.isfinite(time):
            return range(0)
        last = math.floor(time)
        return range(max(last - count + 1, math.floor(self.start)), last + 1)

    def _read(self, stop: int) -> None:
        index, num_bytes = self._timeline.index, 0
        try:
            for position, payload in self._timeline.payloads(self._position, stop):
                self._position = position
                outline = None
                if payload is None:  # a snapshot
                    self._last_step = None
                    continue
                try:
                    outline = step_outline(payload)
                except WireError:
                    self._last_step = None
                if outline is not None:
                    self.add(outline, index[position].time)
                num_bytes += len(payload)
                if num_bytes >= MAX_BYTES:
                    return
        except RecordingError:
            self.skip(stop)

    def add(self, step: StepOutline | Step, end: float) -> None:
        """Adds a step that ended at `end` by the timeline's clock, which never runs backwards."""
        before = self.end
        begin = min(step.start_time, end) if math.isfinite(step.start_time) else end
        begin = max(begin, before) if self._times else begin
        follows = self._last_step is not None and step.step == self._last_step + 1
        stats = step.stats
        sums: dict[str, float] = {
            "steps": 1.0,
            "generated": float(sum([len(update.new_token_ids) for update in step.sequences])),
            "prefill": _amount(stats.num_prefill_tokens),
            "decode": _amount(stats.num_decode_tokens),
        }
        if follows:
            if begin > before:
                was_idle = not self._had_work
                gap: dict[str, float] = gap_parts(begin - before, stats, was_idle=was_idle)
                if not was_idle:  # its tokens took the time since the step before
                    share = (begin - before) / (end - before)
                    gap.update({name: amount * share for name, amount in sums.items()})
                    sums = {name: amount * (1.0 - share) for name, amount in sums.items()}
                self._append(begin, gap)
        else:
            if self._times:
                self._append(before, {}, _UNKNOWN)
            self._append(begin, {}, _UNKNOWN)
        overlap = begin - step.start_time if math.isfinite(step.start_time) else 0.0
        sums.update(time_parts(stats, end - begin, overlap))
        self._append(end, sums, _gauges_of(stats))
        if step.preemptions:  # at one moment, that of the step in the history
            self._append(end, {"preemptions": float(len(step.preemptions))})
        self._last_step = step.step
        self._had_work = has_work(stats)

    def _append(
        self, time: float, more: dict[str, float], gauges: tuple[float, ...] | None = None
    ) -> None:
        """Appends a row. Its gauges are valid from `time` on; by default the last ones stay."""
        self._times.append(time)
        for name, column in self._sums.items():
            column.append((column[-1] if column else 0.0) + more.get(name, 0.0))
        for number, column in enumerate(self._gauges.values()):
            column.append(column[-1] if gauges is None else gauges[number])
        if len(self._times) > self._max_rows:
            self._halve()

    def _halve(self) -> None:
        """Removes every second row of the older half."""
        half = len(self._times) // 2 // 2 * 2
        for column in (self._times, *self._sums.values()):
            column[:half] = column[0:half:2]
        for names in _KINDS:
            columns = [self._gauges[name] for name in names]
            rows = [*zip(*(column[:half] for column in columns), strict=True)]
            kept = [_larger(*pair) for pair in zip(rows[::2], rows[1::2], strict=True)]
            for column, values in zip(columns, zip(*kept, strict=True), strict=True):
                column[:half] = array("d", values)

    def _drop_before(self, time: float) -> None:
        count = bisect_left(self._times, time)
        for column in (self._times, *self._sums.values(), *self._gauges.values()):
            del column[:count]

    def _locate(self, time: float) -> tuple[int, float]:
        """Returns the last row that is not after `time`, and the way to the next, from 0 to 1."""
        row = bisect_right(self._times, time) - 1
        if row < 0:
            return 0, 0.0
        if row + 1 == len(self._times):
            return row, 0.0
        start = self._times[row]
        return row, (time - start) / (self._times[row + 1] - start)


def _values(column: array[float], locations: Sequence[tuple[int, float]]) -> list[float]:
    return [
        column[row] + way * (column[row + 1] - column[row]) if way else column[row]
        for row, way in locations
    ]


_Row: TypeAlias = tuple[float, ...]


def _larger(one: _Row, other: _Row) -> _Row:
    """Returns the larger of two rows of gauges; an unknown one is the smaller."""
    if one[0] != one[0]:
        return other
    return one if other[0] != other[0] else max(one, other)


def _gauges_of(stats: StepStats) -> tuple[float, ...]:
    return (
        _amount(stats.num_running),
        _amount(stats.num_waiting),
        _amount(stats.num_used_blocks),
        _amount(stats.num_cached_blocks),
        _amount(stats.num_free_blocks),
    )


def _amount(number: int | None) -> float:
    """Returns a number from the wire that cannot be negative; 0 for one that the engine lacks."""
    return float(max(number or 0, 0))


class SeriesReader(Reader):
    """Reads a whole series in a pass over its timeline, in place of `StepSeries.update`.

    Args:
        timeline: The timeline.
        max_rows: The largest number of rows.
    """

    needs_state = False

    def __init__(self, timeline: Timeline, *, max_rows: int) -> None:
        self.series = StepSeries(timeline, max_rows=max_rows)
        self._timeline = timeline

    def start(self, position: int, state: EngineState) -> None:
        """Begins, or continues after a gap."""
        self.series.skip(position)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads an event."""
        if isinstance(event, Step):
            self.series.add(event, self._timeline.index[position].time)
