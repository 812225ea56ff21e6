"""Latency figures over a sliding window: what users feel, as percentiles.

A look at what changed costs O(1) for each new sample, whatever the number of sequences. The
figures are exact over the samples in the window: with n of them in order, x₀ to xₙ₋₁, the p-th
percentile lies at h = (n - 1) · p / 100 and is x⌊h⌋ + (h - ⌊h⌋) · (x⌊h⌋₊₁ - x⌊h⌋), as NumPy has it.

A request gives one sample of each figure when it is known: its queue time when it is first
scheduled, its TTFT at its first token, its E2E and its TPOT = (end - first token) / (tokens - 1)
at its end. ITL has a sample for each gap between two tokens of a sequence; where several tokens
came between two looks (thirty a second), each counts with the mean of their gaps.
"""

import itertools
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from seqtop.sequence import latency
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.slo import FIGURES, Slo, missed

WINDOW = 60.0
"""Seconds of the engine's time that the figures look back."""
LARGEST = 20_000
"""Samples in a window; where more came in its time, the newest count."""
KEPT = 100_000
"""Samples of each figure that are kept for looking back."""
QUIET = 30.0
"""Seconds without a missed objective after which the next one is news again."""
AT_ONCE = 1_024
"""Sequences looked at between two frames."""
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


class Window:
    """The samples of one figure that are at most `length` seconds old.

    They are put in order of size when somebody asks for a figure, not as they come: a hundred
    thousand come a second, and one asks once.
    """

    def __init__(self, length: float = WINDOW) -> None:
        self._length = length
        self._samples: deque[tuple[float, float]] = deque()
        self._ordered: list[float] | None = []

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, time: float, value: float, count: int = 1) -> None:
        """Take a sample, or `count` that are alike."""
        samples = self._samples
        samples.extend(itertools.repeat((time, value), count))
        while len(samples) > LARGEST:
            samples.popleft()
        self._ordered = None

    def expire(self, now: float) -> None:
        """Forget what is too old at `now`."""
        samples = self._samples
        while samples and samples[0][0] <= now - self._length:
            samples.popleft()
            self._ordered = None

    def percentile(self, p: float) -> float:
        """The value that `p` percent of the samples do not exceed; NaN without samples."""
        values = self._values
        if not values:
            return math.nan
        h = (len(values) - 1) * p / 100
        low = math.floor(h)
        high = min(low + 1, len(values) - 1)
        return values[low] + (h - low) * (values[high] - values[low])

    def mean(self) -> float:
        return math.fsum(self._values) / len(self) if self._samples else math.nan

    def figures(self) -> Figures:
        if not self._samples:
            return Figures()
        p50, p90, p99 = (self.percentile(p) for p in (50, 90, 99))
        return Figures(len(self), p50, p90, p99, self._values[-1])

    def histogram(self, num_bins: int) -> list[int]:
        """How many samples are in each of `num_bins` between the extremes, evenly in logarithm."""
        values = self._values
        if not values or num_bins < 1:
            return [0] * max(num_bins, 0)
        low, high = max(values[0], 1e-6), max(values[-1], 1e-6)
        edges = [low * (high / low) ** (index / num_bins) for index in range(1, num_bins)]
        below = [bisect_right(values, edge) for edge in edges]
        ends = [*below, len(values)]
        return [end - start for start, end in zip([0, *below], ends, strict=True)]

    @property
    def _values(self) -> list[float]:
        """Those of the samples, in order of size."""
        if self._ordered is None:
            self._ordered = sorted(value for _, value in self._samples)
        return self._ordered


class _Seen(msgspec.Struct, gc=False):
    """What has been counted of a sequence."""

    num_tokens: int = 0
    last_time: float = 0.0
    figures: frozenset[str] = frozenset()


class Latencies:
    """The figures of one engine, brought up to date by what was touched."""

    def __init__(self, slo: Slo = Slo()) -> None:  # noqa: B008 (it is frozen)
        self.slo = slo
        self.windows = {key: Window() for key in FIGURES}
        self.met = Window()
        """One for each request that ended having met all objectives, nought for the others."""
        self.medians: dict[str, deque[float]] = {key: deque(maxlen=120) for key in FIGURES}
        """The p50 of each figure, once a second."""
        self._record: dict[str, deque[tuple[float, float]]] = {
            key: deque(maxlen=KEPT) for key in (*FIGURES, "met")
        }
        self._seen: dict[int, _Seen] = {}
        self._due: dict[int, None] = {}
        """Sequences that are yet to be looked at, the first touched first."""
        self._late: set[str] = set()
        self._news: list[tuple[str, dict[str, float]]] = []
        self._last_late = -math.inf
        self._time = -math.inf

    def observe(self, state: EngineState, touched: Iterable[int] | None) -> None:
        """Count what is new in `state`, of which `touched` changed since the last look.

        No more than `AT_ONCE` are looked at; the rest is left to the next calls.
        """
        if touched is None or state.time < self._time:
            self._begin(state)
        else:
            self._due.update(dict.fromkeys(touched))
            for seq_id in [*itertools.islice(self._due, AT_ONCE)]:
                del self._due[seq_id]
                if sequence := state.sequences.get(seq_id):
                    self._look(state, state.requests[sequence.request_id], sequence)
                else:
                    self._seen.pop(seq_id, None)
        second_before, self._time = self._time, state.time
        for window in (*self.windows.values(), self.met):
            window.expire(state.time)
        if math.isfinite(state.time) and state.time // 1 != second_before // 1:
            for key, window in self.windows.items():
                self.medians[key].append(window.percentile(50))

    @property
    def is_behind(self) -> bool:
        """Whether some are yet to be looked at; `observe` goes on with it."""
        return bool(self._due)

    def at(self, time: float) -> tuple[dict[str, Window], Window]:
        """The windows as they were at `time`, as far as their samples are kept."""
        windows = {}
        for key, record in self._record.items():
            windows[key] = window = Window()
            for moment, value in record:
                if time - WINDOW < moment <= time:
                    window.add(moment, value)
        return windows, windows.pop("met")

    def take_news(self) -> list[tuple[str, dict[str, float]]]:
        """Who has missed what, if that begins a burst; nothing while one goes on."""
        news, self._news = self._news, []
        if not news:
            return []
        begins = self._time - self._last_late > QUIET
        self._last_late = self._time
        return news if begins else []

    def _begin(self, state: EngineState) -> None:
        """Count what a whole state tells: everything but the gaps between its tokens."""
        for key in FIGURES:
            if key != "itl" or state.time < self._time:
                self._clear(key)
        self._clear("met")
        self._seen.clear()
        self._due.clear()
        for sequence in state.sequences.values():
            request = state.requests[sequence.request_id]
            # Its tokens came before anybody looked.
            self._seen[sequence.seq_id] = _Seen(
                len(sequence.output_token_ids), request.metrics.last_token_time
            )
            self._look(state, request, sequence)
        self._news.clear()  # of old

    def _clear(self, key: str) -> None:
        self._record[key].clear()
        if key == "met":
            self.met = Window()
        else:
            self.windows[key] = Window()

    def _look(self, state: EngineState, request: RequestState, sequence: SequenceState) -> None:
        seen = self._seen.get(sequence.seq_id)
        if seen is None:
            seen = self._seen[sequence.seq_id] = _Seen()
        metrics = request.metrics
        num_tokens, last_time = len(sequence.output_token_ids), metrics.last_token_time
        if num_tokens > seen.num_tokens:
            num_gaps, start = num_tokens - seen.num_tokens, seen.last_time
            if not seen.num_tokens:
                num_gaps, start = num_gaps - 1, metrics.first_token_time or math.nan
            if num_gaps:
                gap = (last_time - start) / num_gaps
                self._add(state, "itl", last_time, gap, min(num_gaps, _MOST_TOKENS))
        seen.num_tokens, seen.last_time = num_tokens, last_time
        if request.finish_reason is None and seen.figures >= _BEFORE_THE_END and not self.slo:
            return  # nothing more is to be known of it before it ends
        if request.seq_ids[0] == sequence.seq_id:
            seen.figures |= self._request(state, request, num_tokens, seen.figures)
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
            self._add(state, key, time, value)
        if finished and "met" not in counted:
            found.add("met")
            sequences = (state.sequences[seq_id] for seq_id in request.seq_ids)
            met = not any(missed(self.slo, request, each, state.time) for each in sequences)
            self._add(state, "met", ended, float(met))
        return found

    def _add(self, state: EngineState, key: str, time: float, value: float, count: int = 1) -> None:
        if not (math.isfinite(time) and 0 <= value < math.inf):
            return
        self._record[key].extend(itertools.repeat((time, value), count))
        if time > state.time - WINDOW:
            (self.met if key == "met" else self.windows[key]).add(time, value, count)
