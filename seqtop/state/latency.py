"""Latency figures over a sliding window: what users feel, as percentiles.

A look at what an event changed costs O(1) for each sample, whatever the number of sequences. The
figures are exact over the samples in the window: with n of them in order, x₀ to xₙ₋₁, the p-th
percentile lies at h = (n - 1) · p / 100 and is x⌊h⌋ + (h - ⌊h⌋) · (x⌊h⌋₊₁ - x⌊h⌋), as NumPy has it.

A request gives one sample of each figure when it is known: its queue time when it is first
scheduled, its TTFT at its first token, its E2E and its TPOT = (end - first token) / (tokens - 1)
at its end. ITL has a sample for each gap between two tokens of a sequence; where several tokens
came in one event, each counts with the mean of their gaps. The tokens that a forked sequence has
from its parent count as its parent's alone, and its first own one begins its first gap.

All figures are of one start of the engine: a new one begins them anew, and what was measured of
those before can only be looked back at.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from seqtop.sequence import latency
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.slo import FIGURES, Slo, missed
from seqtop.wire.messages import EngineInfo

WINDOW = 60.0
"""Seconds of the engine's time that the figures look back."""
LARGEST = 20_000
"""Samples in a window; where more came in its time, the newest count."""
KEPT = 100_000
"""Samples of each figure that are kept for looking back, of one start of the engine."""
KEPT_SECONDS = 3_600
"""Medians of each figure that are: one for each second."""
KEPT_STARTS = 4
"""Starts of the engine, the newest, of which they are."""
QUIET = 30.0
"""Seconds without a missed objective after which the next one is news again."""
_MOST_TOKENS = 1_000
"""Gaps counted of one sequence between two looks."""
_BEFORE_THE_END = frozenset({"queue", "ttft"})
"""The figures of a request that are known while it runs."""


class Figures(NamedTuple):
    """What a window holds, in seconds."""

    num: int = 0
    p50: float = math.nan
    p90: float = math.nan
    p99: float = math.nan
    largest: float = math.nan


class Samples:
    """Moments and what was measured then: the newest `most` of them.

    Numbers side by side, as a pair for each would be an object for the garbage collector to look
    at, a hundred thousand times a second.
    """

    def __init__(self, most: int) -> None:
        self.times: deque[float] = deque(maxlen=most)
        self.values: deque[float] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self.times)

    def extend(self, times: Iterable[float], values: Iterable[float]) -> None:
        self.times.extend(times)
        self.values.extend(values)


class SlidingWindow(Samples):
    """The samples of one figure that are at most `length` seconds old.

    They are put in order of size when somebody asks for a figure, not as they come: a hundred
    thousand come a second, and one asks once.
    """

    def __init__(self, length: float = WINDOW) -> None:
        super().__init__(LARGEST)
        self._length = length
        self._ordered: list[float] | None = []

    def add(self, time: float, value: float) -> None:
        self.extend((time,), (value,))

    def extend(self, times: Iterable[float], values: Iterable[float]) -> None:
        super().extend(times, values)
        self._ordered = None

    def expire(self, now: float) -> None:
        """Forget what is too old at `now`."""
        times, values = self.times, self.values
        while times and times[0] <= now - self._length:
            times.popleft()
            values.popleft()
            self._ordered = None

    def percentile(self, p: float) -> float:
        """The value that `p` percent of the samples do not exceed; NaN without samples."""
        values = self._in_order
        if not values:
            return math.nan
        h = (len(values) - 1) * p / 100
        low = math.floor(h)
        high = min(low + 1, len(values) - 1)
        return values[low] + (h - low) * (values[high] - values[low])

    def mean(self) -> float:
        return math.fsum(self.values) / len(self) if self else math.nan

    def figures(self) -> Figures:
        if not self:
            return Figures()
        p50, p90, p99 = (self.percentile(p) for p in (50, 90, 99))
        return Figures(len(self), p50, p90, p99, self._in_order[-1])

    def histogram(self, num_bins: int) -> list[int]:
        """How many samples are in each of `num_bins` between the extremes, evenly in logarithm."""
        values = self._in_order
        if not values or num_bins < 1:
            return [0] * max(num_bins, 0)
        low, high = max(values[0], 1e-6), max(values[-1], 1e-6)
        edges = [low * (high / low) ** (index / num_bins) for index in range(1, num_bins)]
        below = [bisect_right(values, edge) for edge in edges]
        ends = [*below, len(values)]
        return [end - start for start, end in zip([0, *below], ends, strict=True)]

    @property
    def _in_order(self) -> list[float]:
        if self._ordered is None:
            self._ordered = sorted(self.values)
        return self._ordered


class Measured(NamedTuple):
    """What there is to be shown of one moment: all of the same start of the engine."""

    windows: Mapping[str, SlidingWindow]
    met: SlidingWindow
    """One for each request that ended having met all objectives, nought for the others."""
    medians: Mapping[str, Sequence[float]]
    """The p50 of each figure, once a second, the newest last."""


class _Kept:
    """What is kept of one start of the engine for looking back."""

    def __init__(self) -> None:
        self.samples = {key: Samples(KEPT) for key in (*FIGURES, "met")}
        self.medians = {key: Samples(KEPT_SECONDS) for key in FIGURES}


class _Seen(msgspec.Struct, gc=False):
    """What has been counted of a sequence."""

    num_tokens: int = 0
    last_time: float = 0.0
    request_id: str = ""
    is_begun: bool = False
    """Whether all figures of its request that are known before the end have been counted."""


class Latencies:
    """The figures of one engine, brought up to date by what was touched."""

    def __init__(self, slo: Slo = Slo()) -> None:  # noqa: B008 (it is frozen)
        self.slo = slo
        self._starts: dict[str, _Kept] = {}
        """By incarnation what is kept of each start of the engine, the newest last."""
        self._begin_anew("")
        self._seen: dict[int, _Seen] = {}
        self._counted: dict[str, frozenset[str]] = {}
        """By request which of its figures have been counted. (The sequence that speaks for it may
        be another one after each fork.)"""
        self._late: set[str] = set()
        self._news: list[tuple[str, dict[str, float]]] = []
        self._last_late = -math.inf
        self._time = -math.inf
        self._state: EngineState | None = None

    def observe(self, state: EngineState, touched: Iterable[int] | None) -> None:
        """Count what is new in `state`, of which `touched` changed since the last look; `None`, or
        another state than before, means all.
        """
        if _start(state.info) != self._start or state.time < self._time:
            self._begin_anew(_start(state.info))
            self._begin(state)
        elif touched is None or state is not self._state:
            self._begin(state)
        else:
            self._look(state, touched)
        self._state = state
        second_before, self._time = self._time, state.time
        for window in (*self.windows.values(), self.met):
            window.expire(state.time)
        if math.isfinite(state.time) and state.time // 1 != second_before // 1:
            for key, window in self.windows.items():
                self._kept.medians[key].extend((state.time,), (window.percentile(50),))

    @property
    def now(self) -> Measured:
        """What has been observed last."""
        medians = {key: kept.values for key, kept in self._kept.medians.items()}
        return Measured(self.windows, self.met, medians)

    def at(self, info: EngineInfo | None, time: float) -> Measured:
        """What was to be seen at `time` of the engine's start that `info` tells of, as far as it
        is kept.
        """
        kept = self._starts.get(_start(info), _Kept())
        windows = {}
        for key, samples in kept.samples.items():
            windows[key] = window = SlidingWindow()
            for moment, value in zip(samples.times, samples.values, strict=True):
                if time - WINDOW < moment <= time:
                    window.add(moment, value)
        medians = {
            key: [*each.values][: bisect_right(each.times, time)]
            for key, each in kept.medians.items()
        }
        return Measured(windows, windows.pop("met"), medians)

    def take_news(self) -> list[tuple[str, dict[str, float]]]:
        """Who has missed what, if that begins a burst; nothing while one goes on."""
        news, self._news = self._news, []
        if not news:
            return []
        begins = self._time - self._last_late > QUIET
        self._last_late = self._time
        return news if begins else []

    def _begin_anew(self, start: str) -> None:
        """Nothing has been measured yet of this start of the engine."""
        self._start, self._kept = start, _Kept()
        self._starts.pop(start, None)
        self._starts[start] = self._kept
        for oldest in [*self._starts][:-KEPT_STARTS]:
            del self._starts[oldest]
        self.windows = {key: SlidingWindow() for key in FIGURES}
        self.met = SlidingWindow()
        self._last_late = -math.inf

    def _begin(self, state: EngineState) -> None:
        """Count what a whole state tells: everything but the gaps between its tokens."""
        for key in self._kept.samples:
            if key != "itl":
                self._clear(key)
        self._seen.clear()
        self._counted.clear()
        self._late.clear()
        for sequence in state.sequences.values():
            request = state.requests[sequence.request_id]
            # Its tokens came before anybody looked.
            self._seen[sequence.seq_id] = _seen_whole(request, sequence)
        self._look(state, state.sequences)
        self._news.clear()  # of old

    def _clear(self, key: str) -> None:
        self._kept.samples[key] = Samples(KEPT)
        if key == "met":
            self.met = SlidingWindow()
        else:
            self.windows[key] = SlidingWindow()

    def _look(self, state: EngineState, seq_ids: Iterable[int]) -> None:
        """Count what is new of these: a loop that runs once for each token while an engine is fast.

        So what nearly all of them have, one token more, takes no call.
        """
        sequences, requests, all_seen = state.sequences, state.requests, self._seen
        times: list[float] = []
        gaps: list[float] = []
        for seq_id in seq_ids:
            sequence = sequences.get(seq_id)
            if sequence is None:
                gone = all_seen.pop(seq_id, None)
                if gone is not None and gone.request_id not in requests:
                    self._counted.pop(gone.request_id, None)
                continue
            request = requests[sequence.request_id]
            seen = all_seen.get(seq_id)
            if seen is None:
                is_fork = sequence.fork_length is not None
                seen = all_seen[seq_id] = (
                    _seen_whole(request, sequence)
                    if is_fork
                    else _Seen(request_id=request.request_id)
                )
            metrics = request.metrics
            num_tokens, last_time = len(sequence.output_token_ids), metrics.last_token_time
            num_gaps, start = num_tokens - seen.num_tokens, seen.last_time
            if num_gaps > 0 and not seen.num_tokens:
                num_gaps, start = num_gaps - 1, metrics.first_token_time or math.nan
            seen.num_tokens, seen.last_time = num_tokens, last_time
            if num_gaps > 0:
                gap = (last_time - start) / num_gaps
                if not 0 <= gap < math.inf:
                    pass  # no clock can have measured it
                elif num_gaps == 1:
                    times.append(last_time)
                    gaps.append(gap)
                else:
                    num_counted = min(num_gaps, _MOST_TOKENS)
                    times += [last_time] * num_counted
                    gaps += [gap] * num_counted
            if seen.is_begun and request.finish_reason is None and not self.slo:
                continue  # nothing more is to be known of it before it ends
            self._look_at_request(state, request, sequence, seen)
        if gaps:
            self._add(state, "itl", times, gaps)

    def _look_at_request(
        self, state: EngineState, request: RequestState, sequence: SequenceState, seen: _Seen
    ) -> None:
        if request.seq_ids[0] == sequence.seq_id:
            counted = self._counted.get(request.request_id, frozenset())
            counted |= self._request(state, request, seen.num_tokens, counted)
            self._counted[request.request_id] = counted
            seen.is_begun = counted >= _BEFORE_THE_END
        late = missed(self.slo, request, sequence, state.time)
        if late and request.request_id not in self._late:
            self._late.add(request.request_id)
            self._news.append((request.request_id, late))
        if request.finish_reason is not None:
            self._late.discard(request.request_id)

    def _request(
        self, state: EngineState, request: RequestState, num_tokens: int, counted: frozenset[str]
    ) -> set[str]:
        """Count what is known of a request and not `counted` yet; returns which figures."""
        metrics = request.metrics
        ended = metrics.finished_time or state.time
        queued = metrics.time_in_queue
        if queued is None and metrics.first_scheduled_time is not None:
            queued = metrics.first_scheduled_time - metrics.arrival_time
        finished = request.finish_reason in {"stop", "length"} and num_tokens > 0
        known = {
            "queue": (metrics.first_scheduled_time or state.time, queued),
            "ttft": (metrics.first_token_time or state.time, latency.ttft(metrics)),
            "tpot": (ended, latency.itl(metrics, num_tokens) if finished else None),
            "e2e": (ended, latency.e2e_latency(metrics) if finished else None),
        }
        found = {key for key, (_, value) in known.items() if value is not None} - counted
        for key in found:
            time, value = known[key]
            assert value is not None
            if math.isfinite(time) and 0 <= value < math.inf:
                self._add(state, key, [time], [value])
        if finished and "met" not in counted:
            found.add("met")
            sequences = (state.sequences[seq_id] for seq_id in request.seq_ids)
            met = not any(missed(self.slo, request, each, state.time) for each in sequences)
            if math.isfinite(ended):
                self._add(state, "met", [ended], [float(met)])
        return found

    def _add(
        self, state: EngineState, key: str, times: Sequence[float], values: Sequence[float]
    ) -> None:
        self._kept.samples[key].extend(times, values)
        window, begin = self.met if key == "met" else self.windows[key], state.time - WINDOW
        if min(times) > begin:
            window.extend(times, values)
        else:
            for time, value in zip(times, values, strict=True):
                if time > begin:
                    window.add(time, value)


def _start(info: EngineInfo | None) -> str:
    """Which start of the engine it is; nothing while it has not said."""
    return info.incarnation if info else ""


def _seen_whole(request: RequestState, sequence: SequenceState) -> _Seen:
    """A sequence of which nothing is to be counted that it has by now."""
    num_tokens = len(sequence.output_token_ids)
    return _Seen(num_tokens, request.metrics.last_token_time, request.request_id)
