"""The slow requests of a run, and the fields in which they differ from the others.

Fields are ranked by the distance of their distributions among the slow requests and among the
others, from 0 to 1: for numbers, the largest difference of the two cumulative distributions (the
statistic D of Kolmogorov and Smirnov), for words, half the sum of the differences of their shares.
A field is reported if D is so large that equal distributions reach it in one of twenty samples
only: D > 1.36 √((n + m) / (n m)), for n and m requests (Smirnov 1948). Causes come first: what a
request asked for, when, and what it waited for. Fields that say again that it was slow, such as its
TTFT, follow.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from seqtop.history.replay import Reader, Replay, ShowProgress, no_progress
from seqtop.history.timeline import Timeline
from seqtop.sequence import SequenceStatus, latency
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS, Field, Value
from seqtop.state.model import RequestState
from seqtop.state.percentiles import percentile
from seqtop.state.slo import FIGURES, Slo, measured, missed
from seqtop.state.wait_causes import BETWEEN_STEPS, PACED, cause_in_words
from seqtop.text import format as fmt
from seqtop.wire.messages import Event, RequestArrived, RequestFinished

_MAX_WORDS = 20
"""Different words of a field, above which it is a name and not a property."""
_MAX_SHOWN_WORDS = 3
_CRITICAL = 1.36
_SLOW_SHARE = 10
"""Without objectives, the slowest 1/`_SLOW_SHARE` of requests count as slow."""
_NOT_COMPARED = {
    *("seq", "computed", "blocks"),
    *(key for key, field in FIELDS.items() if field.is_private),
}
"""Fields that are a number of the sequence, or always the same at its end, and those that hold the
text of prompts and outputs."""
_MAX_WORD = 60
"""Characters of a word that are shown."""
_HOST, _PREFILL, _DECODE = "time: between steps", "time: prefill", "time: decode"
"""Keys of the times in which a request runs."""
_RESTATEMENTS = {"ttft", "itl", "queue", "e2e", "tps", "waited", "steps", _PREFILL, _DECODE}
"""Keys of fields that are a result of being slow."""
_FIELD_OF = {"ttft": "ttft", "itl": "itl", "queue": "queue", "e2e": "e2e", "tpot": "itl"}
"""The field that has a figure of `seqtop.state.slo`."""


class SlowRequest(msgspec.Struct):
    """A slow request."""

    request_id: str
    seconds: float
    """The figure by which it is slow, or the first objective that it missed."""
    missed: dict[str, float]
    """The objectives that it missed, with its figures in seconds."""


class FieldDifference(msgspec.Struct):
    """A field that slow requests and the others have differently."""

    field: str
    title: str
    distance: float
    """The distance of the distributions, from 0 to 1."""
    slow: str
    """The median of the slow requests, or their most frequent words."""
    others: str
    is_cause: bool = True
    """False if the field only says again that the requests were slow."""


class Outliers(msgspec.Struct):
    """The slow requests of a run."""

    rule: str
    """The rule by which requests are slow."""
    slow: list[SlowRequest]
    """The slow requests, the slowest first."""
    num_others: int
    differences: list[FieldDifference]
    """The fields in which they differ: causes first, and of these the most different first."""


class _Row(msgspec.Struct):
    """The fields of a finished request."""

    request_id: str
    arrival_time: float
    figures: dict[str, float | None]
    missed: dict[str, float]
    values: dict[str, Value]


def find_outliers(
    timeline: Timeline, slo: Slo, by: str = "e2e", progress: ShowProgress = no_progress
) -> Outliers:
    """Finds the slow requests among those that finish on a timeline.

    Args:
        timeline: The timeline.
        slo: The objectives whose miss makes a request slow. Without any, the slowest tenth is slow.
        by: The figure for the slowest tenth, a key of `FIGURES`.
        progress: Shows the part that has been read.

    Raises:
        RecordingError: The timeline cannot be read.
    """
    reader = _RowsReader(slo)
    Replay(timeline, [reader]).run(progress)
    rows = reader.rows
    first = min(_numbers([row.arrival_time for row in rows]), default=0.0)
    for row in rows:
        row.values["arrived"] = row.arrival_time - first
    if slo:
        slow = [row for row in rows if row.missed]
        key: Callable[[_Row], float] = lambda row: next(iter(row.missed.values()))  # noqa: E731
        rule = f"they missed {slo}"
        excluded = {_FIELD_OF[figure] for figure in slo.limits}
    else:
        known = [row for row in rows if row.figures[by] is not None]
        key = lambda row: row.figures[by] or 0.0  # noqa: E731
        slow = sorted(known, key=key)[len(known) - math.ceil(len(known) / _SLOW_SHARE) :]
        rule = f"the slowest tenth by {FIGURES[by]}"
        excluded = {_FIELD_OF[by]}
    slow.sort(key=key, reverse=True)
    names = {id(row) for row in slow}
    others = [row for row in rows if id(row) not in names]
    slow_requests = [SlowRequest(row.request_id, key(row), row.missed) for row in slow]
    return Outliers(rule, slow_requests, len(others), _differences(slow, others, excluded))


class _RowsReader(Reader):
    """Reads the fields of each request when it finishes.

    Args:
        slo: The objectives.
    """

    def __init__(self, slo: Slo) -> None:
        self.rows: list[_Row] = []
        self._slo = slo
        self._between_before: dict[str, float] = {}
        """The seconds between steps before each request arrived."""
        self._state = EngineState()

    def start(self, position: int, state: EngineState) -> None:
        self._state = state
        self._between_before.clear()

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        state = self._state
        if isinstance(event, RequestArrived):
            wait = state.requests[event.request_id].wait
            self._between_before[event.request_id] = _between(wait.blocked_before)
        if not isinstance(event, RequestFinished):
            return
        request = state.requests.get(event.request_id)
        sequence = state.sequences.get(request.seq_ids[0]) if request and request.seq_ids else None
        if request is None or sequence is None or not SequenceStatus.is_finished(sequence.status):
            return
        now = event.time
        values = {
            key: field.value(request, sequence, now)
            for key, field in FIELDS.items()
            if key not in _NOT_COMPARED
        }
        values["lora"] = request.lora
        for cause, seconds in request.wait.by_cause.items():
            values[f"waited: {cause_in_words(cause).label}"] = seconds
        if (before := self._between_before.pop(request.request_id, None)) is not None:
            between_steps = _between(state.blocked.by_cause) - before
            values |= _times(request, between_steps)
        row = _Row(
            request.request_id,
            request.metrics.arrival_time,
            measured(request, sequence, now),
            missed(self._slo, request, sequence, now),
            values,
        )
        self.rows.append(row)


def _between(by_cause: Mapping[str, float]) -> float:
    """Returns the seconds between steps, of the host and those that the engine waited on purpose.

    The two are told apart only at the step after an arrival.
    """
    return by_cause.get(BETWEEN_STEPS, 0.0) + by_cause.get(PACED, 0.0)


def _times(request: RequestState, between_steps: float) -> dict[str, Value]:
    """Returns how a request spent the seconds in which it did not wait.

    Args:
        request: The request, which has finished.
        between_steps: The seconds between steps since it arrived.
    """
    wait = request.wait
    host = max(between_steps - _between(wait.by_cause), 0.0)
    prefill = sum(
        span.end - span.start
        for span in request.spans
        if span.kind == "prefill" and span.end is not None
    )
    times = {_HOST: host, _PREFILL: prefill}
    if (e2e := latency.e2e_latency(request.metrics)) is not None:
        times[_DECODE] = max(e2e - wait.total - host - prefill, 0.0)
    return {key: seconds for key, seconds in times.items() if seconds > 0}


def _differences(slow: list[_Row], others: list[_Row], excluded: set[str]) -> list[FieldDifference]:
    if not slow or not others:
        return []
    critical = _CRITICAL * math.sqrt((len(slow) + len(others)) / (len(slow) * len(others)))
    keys = dict.fromkeys(key for row in (*slow, *others) for key in row.values)
    differences = []
    for key in keys:
        if key in excluded:
            continue
        difference = _difference(key, _column(slow, key), _column(others, key))
        if difference is not None and difference.distance > critical:
            difference.is_cause = key not in _RESTATEMENTS
            differences.append(difference)
    return sorted(
        differences, key=lambda difference: (not difference.is_cause, -difference.distance)
    )


def _column(rows: list[_Row], key: str) -> list[Value]:
    is_time = ":" in key  # a cause that a request did not wait for
    return [row.values.get(key, 0.0 if is_time else None) for row in rows]


def _difference(key: str, slow: list[Value], others: list[Value]) -> FieldDifference | None:
    title = FIELDS[key].help if key in FIELDS else key
    words = {value for value in (*slow, *others) if isinstance(value, str)}
    if words:
        if len(words) > _MAX_WORDS:
            return None
        counts = Counter(slow), Counter(others)
        distance = sum(
            abs(counts[0][word] / len(slow) - counts[1][word] / len(others))
            for word in {*counts[0], *counts[1]}
        )
        slow_words, other_words = map(_most_common, counts)
        return FieldDifference(key, title, distance / 2, slow_words, other_words)
    numbers = _numbers(slow), _numbers(others)
    if not all(numbers):
        return None
    slow_median, other_median = (_median(key, sample) for sample in numbers)
    return FieldDifference(key, title, _ks_distance(*numbers), slow_median, other_median)


def _numbers(values: Sequence[Value]) -> list[float]:
    return sorted(
        float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)
    )


def _ks_distance(one: list[float], other: list[float]) -> float:
    """Returns the largest difference of the cumulative distributions of two sorted samples."""
    return max(
        abs(bisect_right(one, value) / len(one) - bisect_right(other, value) / len(other))
        for value in {*one, *other}
    )


def _median(key: str, values: list[float]) -> str:
    field: Field | None = FIELDS.get(key)
    show = fmt.seconds if field is None else field.format
    return f"median {show(percentile(values, 50))}"


def _most_common(counts: Counter[Value]) -> str:
    total = counts.total()
    return ", ".join(
        f"{fmt.shortened(str(word or 'none'), _MAX_WORD)} {fmt.percent(number, total)}"
        for word, number in counts.most_common(_MAX_SHOWN_WORDS)
    )
