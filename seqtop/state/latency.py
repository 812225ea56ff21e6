"""Latencies of an engine's requests over a sliding window.

The cost of a sample is O(1), independent of the number of sequences. The percentiles are exact over
the samples in the window (`seqtop.state.sliding_window`).

A request adds one sample to each figure when it is known: its queue time when it is first
scheduled, its TTFT at its first token, its E2E and its TPOT = (end - first token) / (tokens - 1) at
its end. ITL has a sample for each gap between two tokens of a sequence; several tokens in one event
count with the mean of their gaps. The tokens that a forked sequence has from its parent count for
the parent only, and its own first token starts its first gap.

All figures are of one run of the engine. A restart resets them; those of earlier runs are available
through `Latencies.at`.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec

from seqtop.sequence import SequenceStatus, latency
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.percentiles import LeastPercentile, least_percentile
from seqtop.state.sliding_window import WINDOW, Samples, SlidingWindow
from seqtop.state.slo import FIGURES, Slo, missed
from seqtop.wire.messages import EngineInfo

MAX_SAMPLES = 100_000
"""Samples of each figure stored for one run of the engine."""
MAX_RUNS = 4
"""Runs of the engine for which samples are stored: the newest."""
QUIET = 30.0
"""Seconds without a missed objective after which the next one is reported."""
MAX_TIMES = 64
"""The times of the newest tokens that are stored of each running sequence."""
_MAX_GAPS = 1_000
"""Gaps counted of one sequence in one update."""
_OUT_OF_THE_BATCH = frozenset({SequenceStatus.WAITING, SequenceStatus.SWAPPED})
_KNOWN_BEFORE_END = frozenset({"queue", "ttft"})
"""The figures of a request that are known while it runs."""


class Measured(NamedTuple):
    """The latencies at one time, all of the same run of the engine."""

    windows: Mapping[str, SlidingWindow]
    met: SlidingWindow
    """1.0 for each finished request that met all objectives, 0.0 for the others."""


def minute_percentile(
    state: EngineData, windows: Mapping[str, SlidingWindow], figure: str, percent: float
) -> LeastPercentile | None:
    """Returns a percentile of a figure in the minute before the moment of `state`, in seconds.

    The TTFT of requests that wait for their first token counts with the time that they have waited.

    Args:
        state: The state.
        windows: The latencies at its time.
        figure: A key of `FIGURES`.
        percent: A number from 0 to 100.
    """
    waits: list[float] = []
    if figure == "ttft":
        waits = [
            wait
            for request in state.requests.values()
            if request.finish_reason is None and request.metrics.first_token_time is None
            if 0 <= (wait := state.time - request.metrics.arrival_time) < math.inf
        ]
    return least_percentile(windows[figure].values, waits, percent)


class _History:
    """The samples of one run of the engine."""

    def __init__(self) -> None:
        self.samples = {key: Samples(MAX_SAMPLES) for key in (*FIGURES, "met")}


class _Counted(msgspec.Struct, gc=False):
    """The part of a sequence that has been counted."""

    num_tokens: int = 0
    last_time: float = 0.0
    request_id: str = ""
    has_begun: bool = False
    """True if all figures that are known before the end have been counted."""
    times: array[float] = msgspec.field(default_factory=lambda: array("d"))
    """The times of its newest tokens, at least `MAX_TIMES` if it has so many; none after its end.

    Several tokens that came at once have equal gaps between them."""


class Latencies:
    """The latencies of one engine."""

    def __init__(self, slo: Slo = Slo()) -> None:  # noqa: B008 (it is frozen)
        self.slo = slo
        self._runs: dict[str, _History] = {}
        """The samples of each run of the engine by incarnation, the newest last."""
        self._restart("")
        self._sequences: dict[int, _Counted] = {}
        self._counted: dict[str, frozenset[str]] = {}
        """The figures counted for each request, whose first sequence may change with a fork."""
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        """The different values of `_counted`, so that each is one object."""
        self._missed: set[str] = set()
        self._awaited: dict[str, float] = {}
        """The requests that wait for their first token, or to run again, the longest first: the
        time since when."""
        self._alerts: list[tuple[str, dict[str, float]]] = []
        self._last_missed_time = -math.inf
        self._time = -math.inf
        self._state: EngineData | None = None

    def observe(self, state: EngineData, touched: Iterable[int] | None) -> bool:
        """Counts the changes of `state` since the last call.

        Args:
            state: The state; another object than before is counted as a whole.
            touched: The sequences that changed; `None` means all.

        Returns:
            Whether the state was counted as a whole, without the times between its tokens.
        """
        is_other_run = _incarnation(state.info) != self._incarnation or state.time < self._time
        if is_other_run:
            self._restart(_incarnation(state.info))
        is_whole = is_other_run or touched is None or state is not self._state
        if is_whole:
            self._count_state(state)
        else:
            self._count(state, touched or ())
        self._state = state
        self._time = state.time
        for window in (*self.windows.values(), self.met):
            window.expire(state.time)
        return is_whole

    def set_gaps(self, times: Sequence[float], gaps: Sequence[float]) -> None:
        """Replaces the times between tokens by those that a recording has of the last minute.

        Args:
            times: When the later token of each gap came, epoch seconds, in order.
            gaps: The gaps, in seconds. Those that no clock measures are left out.
        """
        self._clear("itl")
        known = [pair for pair in zip(times, gaps, strict=True) if 0 <= pair[1] < math.inf]
        if known and self._state is not None:
            self._add(self._state, "itl", *zip(*known, strict=True))

    def limit(self, slo: Slo) -> None:
        """Changes the objectives, and counts again which of the known requests met them."""
        self.slo = slo
        if self._state is not None:
            self._count_state(self._state)

    @property
    def now(self) -> Measured:
        """The latencies at the last `observe`."""
        return Measured(self.windows, self.met)

    def at(self, info: EngineInfo | None, time: float) -> Measured:
        """Returns the latencies at `time` (epoch seconds) of the run of the engine with `info`.

        Samples are missing where they are no longer stored.
        """
        history, begin = self._runs.get(_incarnation(info), _History()), time - WINDOW
        windows = {}
        for key, samples in history.samples.items():
            windows[key] = window = SlidingWindow()
            pairs = zip(samples.times, samples.values, strict=True)
            within = [pair for pair in pairs if begin < pair[0] <= time]
            window.extend((pair[0] for pair in within), (pair[1] for pair in within))
        return Measured(windows, windows.pop("met"))

    def gaps(self, seq_id: int, count: int, until: float) -> list[float]:
        """Returns the newest times between two tokens of a running sequence, in seconds.

        Args:
            seq_id: The sequence.
            count: The most times to return.
            until: The time after which tokens are left out, epoch seconds.
        """
        known = self._sequences.get(seq_id)
        if known is None:
            return []
        times = known.times[: bisect_right(known.times, until)][-count - 1 :]
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    @property
    def oldest_wait(self) -> float:
        """The longest time for which a request now waits, in seconds.

        It waits for its first token since its arrival, and to run again since its last token.
        """
        oldest = next(iter(self._awaited.values()), None)
        return 0.0 if oldest is None else max(self._time - oldest, 0.0)

    def take_alerts(self) -> list[tuple[str, dict[str, float]]]:
        """Returns the requests that have just missed objectives, with the figures in seconds.

        The list is empty while a burst of missed objectives continues (`QUIET`).
        """
        alerts, self._alerts = self._alerts, []
        if not alerts:
            return []
        is_new_burst = self._time - self._last_missed_time > QUIET
        self._last_missed_time = self._time
        return alerts if is_new_burst else []

    def _restart(self, incarnation: str) -> None:
        """Resets the figures for another run of the engine."""
        self._incarnation, self._history = incarnation, _History()
        self._runs.pop(incarnation, None)
        self._runs[incarnation] = self._history
        for oldest in [*self._runs][:-MAX_RUNS]:
            del self._runs[oldest]
        self.windows = {key: SlidingWindow() for key in FIGURES}
        self.met = SlidingWindow()
        self._last_missed_time = -math.inf

    def _count_state(self, state: EngineData) -> None:
        """Counts a whole state: everything but the gaps between its tokens."""
        for key in self._history.samples:
            if key != "itl":
                self._clear(key)
        self._sequences.clear()
        self._counted.clear()
        self._missed.clear()
        self._awaited.clear()
        for sequence in state.sequences.values():
            request = state.requests[sequence.request_id]
            # The times of its tokens are unknown.
            self._sequences[sequence.seq_id] = _counted_whole(request, sequence)
        self._count(state, state.sequences)
        self._awaited = dict(sorted(self._awaited.items(), key=itemgetter(1)))
        self._alerts.clear()

    def _clear(self, key: str) -> None:
        self._history.samples[key] = Samples(MAX_SAMPLES)
        if key == "met":
            self.met = SlidingWindow()
        else:
            self.windows[key] = SlidingWindow()

    def _count(self, state: EngineData, seq_ids: Iterable[int]) -> None:
        """Counts the changes of these sequences.

        The loop runs for every token, so the common case of one more token is inlined.
        """
        sequences, requests, counted_sequences = state.sequences, state.requests, self._sequences
        times: list[float] = []
        gaps: list[float] = []
        for seq_id in seq_ids:
            sequence = sequences.get(seq_id)
            if sequence is None:
                removed = counted_sequences.pop(seq_id, None)
                if removed is not None and removed.request_id not in requests:
                    self._counted.pop(removed.request_id, None)
                    self._awaited.pop(removed.request_id, None)
                    self._missed.discard(removed.request_id)
                continue
            request = requests[sequence.request_id]
            known = counted_sequences.get(seq_id)
            if known is None:
                is_fork = sequence.fork_length is not None
                known = counted_sequences[seq_id] = (
                    _counted_whole(request, sequence)
                    if is_fork
                    else _Counted(request_id=request.request_id)
                )
            metrics = request.metrics
            num_tokens, last_time = len(sequence.output_token_ids), metrics.last_token_time
            num_gaps, start = num_tokens - known.num_tokens, known.last_time
            if num_gaps > 0 and not known.num_tokens:
                num_gaps, start = num_gaps - 1, metrics.first_token_time or math.nan
            known.num_tokens, known.last_time = num_tokens, last_time
            if num_gaps > 0:
                gap = (last_time - start) / num_gaps
                if not 0 <= gap < math.inf:
                    pass  # not a time that a clock can measure
                elif num_gaps == 1:
                    times.append(last_time)
                    gaps.append(gap)
                    known.times.append(last_time)
                else:
                    newest = range(min(num_gaps, MAX_TIMES) - 1, -1, -1)
                    known.times.extend([last_time - gap * number for number in newest])
                    num_counted = min(num_gaps, _MAX_GAPS)
                    times += [last_time] * num_counted
                    gaps += [gap] * num_counted
                if len(known.times) > 2 * MAX_TIMES:
                    del known.times[:-MAX_TIMES]
            if request.finish_reason is not None:
                known.times = array("d")
            elif known.has_begun and not self.slo:
                self._note_wait(request, sequence)
                continue  # its other figures are known at its end
            self._count_request(state, request, sequence, known)
        if gaps:
            self._add(state, "itl", times, gaps)

    def _count_request(
        self, state: EngineData, request: RequestState, sequence: SequenceState, known: _Counted
    ) -> None:
        self._note_wait(request, sequence)
        if request.seq_ids[0] == sequence.seq_id:
            counted = self._counted.get(request.request_id, frozenset())
            counted |= self._count_figures(state, request, known.num_tokens, counted)
            counted = self._sets.setdefault(counted, counted)  # one for all that have the same
            self._counted[request.request_id] = counted
            known.has_begun = counted >= _KNOWN_BEFORE_END
        missed_now = missed(self.slo, request, sequence, state.time)
        if missed_now and request.request_id not in self._missed:
            self._missed.add(request.request_id)
            self._alerts.append((request.request_id, missed_now))

    def _note_wait(self, request: RequestState, sequence: SequenceState) -> None:
        """Notes that a request waits, or that it does not."""
        metrics = request.metrics
        if request.finish_reason is None and metrics.first_token_time is None:
            self._awaited.setdefault(request.request_id, metrics.arrival_time)
        elif request.finish_reason is None and sequence.status in _OUT_OF_THE_BATCH:
            self._awaited.setdefault(request.request_id, metrics.last_token_time)
        elif self._awaited:
            self._awaited.pop(request.request_id, None)

    def _count_figures(
        self, state: EngineData, request: RequestState, num_tokens: int, counted: frozenset[str]
    ) -> set[str]:
        """Counts the known figures of a request that are not in `counted`; returns their keys."""
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
        figures = {key for key, (_, value) in known.items() if value is not None} - counted
        for key in figures:
            time, value = known[key]
            assert value is not None
            if math.isfinite(time) and 0 <= value < math.inf:
                self._add(state, key, [time], [value])
        if finished and "met" not in counted:
            figures.add("met")
            sequences = (state.sequences[seq_id] for seq_id in request.seq_ids)
            met = not any(missed(self.slo, request, sequence, state.time) for sequence in sequences)
            if math.isfinite(ended):
                self._add(state, "met", [ended], [float(met)])
        return figures

    def _add(
        self, state: EngineData, key: str, times: Sequence[float], values: Sequence[float]
    ) -> None:
        self._history.samples[key].extend(times, values)
        window, begin = self.met if key == "met" else self.windows[key], state.time - WINDOW
        if min(times) > begin:
            window.extend(times, values)
        else:
            for time, value in zip(times, values, strict=True):
                if time > begin:
                    window.add(time, value)


def _incarnation(info: EngineInfo | None) -> str:
    """Returns the incarnation of the engine; empty before its first `EngineInfo`."""
    return info.incarnation if info else ""


def _counted_whole(request: RequestState, sequence: SequenceState) -> _Counted:
    """Returns the record of a sequence whose tokens so far have all been counted."""
    num_tokens = len(sequence.output_token_ids)
    return _Counted(num_tokens, request.metrics.last_token_time, request.request_id)
