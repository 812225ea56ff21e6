"""The slow requests of a run, and the fields in which they differ from the others.

Fields are ranked by the distance of their distributions among the slow requests and among the
others, from 0 to 1: for numbers, the largest difference of the two cumulative distributions (the
statistic D of Kolmogorov and Smirnov), for words, half the sum of the differences of their shares.
A field is reported if D is so large that equal distributions reach it in one of twenty samples
only: D > 1.36 √((n + m) / (n m)), for n and m requests (Smirnov 1948), and if it matters: the
medians of a number differ by a tenth at least, those of a share by ten points, and seconds that a
request spent in something are a tenth of those by which the slow ones are slower. Causes come
first: what a request asked for, when, and what it waited for. Fields that say again that it was
slow, such as its TTFT, follow.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from seqtop.history.replay import Reader, Replay, ShowProgress, no_progress
from seqtop.history.timeline import Timeline
from seqtop.sequence import SequenceStatus, latency
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS, Field, Value
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.percentiles import percentile
from seqtop.state.slo import FIGURES, Slo, measured, missed
from seqtop.state.verdict import of_whole
from seqtop.state.wait_causes import cause_in_words
from seqtop.state.wait_graph import activity
from seqtop.state.waits import wait_until
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
_LEAST_EXPLAINED = 0.1
"""The part of the difference of slow requests from which on a field is reported."""
_MAX_WORD = 60
"""Characters of a word that are shown."""
_HOST, _PREFILL, _DECODE = "time: between steps", "time: prefill", "time: decode"
"""Keys of the times in which a request runs."""
_RESTATEMENTS = {
    *("ttft", "itl", "queue", "e2e", "tps", "waited", "steps", "harm", _PREFILL, _DECODE)
}
"""Keys of fields that are a result of being slow: also the delay of others by one that is long."""


class _Fact(NamedTuple):
    """A fact of the steps from the arrival of a request to its end."""

    title: str
    format: Callable[[float | None], str]


_FACTS = {
    "step: eager": _Fact("decode steps without a CUDA graph, of those in its time", fmt.percent),
    "step: scheduler": _Fact("scheduler's time of a step, on average in its time", fmt.seconds),
    "step: empty": _Fact("part of its time in which steps computed nothing", fmt.percent),
    "step: recomputed": _Fact("tokens that preemptions lost, of those in its time", fmt.percent),
    "step: encoder": _Fact("inputs of an encoder, such as images", fmt.count),
    "step: accepted": _Fact("draft tokens that were accepted", fmt.percent),
    "step: loaded": _Fact("tokens that a KV connector loaded", fmt.count),
}
"""The facts by key."""
_SHARES = {"step: eager", "step: empty", "step: recomputed", "step: accepted"}
"""Keys of those that are a part of something, from 0 to 1."""
_FIELD_OF = {"ttft": "ttft", "itl": "itl", "queue": "queue", "e2e": "e2e", "tpot": "itl"}
"""The field that has a figure of `seqtop.state.slo`."""


class SlowRequest(msgspec.Struct):
    """A slow request."""

    request_id: str
    seconds: float
    """The figure by which it is slow, or the first objective that it missed."""
    missed: dict[str, float]
    """The objectives that it missed, with its figures in seconds."""
    activity: str = ""
    """Its activity, if it has not ended; its figure is then that up to the end."""


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
    """The slow requests: first those that have not ended, of each the slowest first."""
    num_others: int
    """The others that have ended, with which they are compared."""
    differences: list[FieldDifference]
    """The fields in which they differ: causes first, and of these the most different first."""
    num_open: int = 0
    """The others that have not ended, which may become slow."""
    verdict: str = ""
    """A sentence on what limited the engine in the whole run."""


class _Before(NamedTuple):
    """Sums at the arrival of a request."""

    between_steps: float
    """Seconds between steps."""
    sums: Mapping[str, float]
    """Those of `seqtop.state.limits`."""


class _Row(msgspec.Struct):
    """The fields of a request."""

    request_id: str
    arrival_time: float
    figures: dict[str, float | None]
    missed: dict[str, float]
    values: dict[str, Value]
    activity: str = ""
    """Its activity, if it has not ended."""


def find_outliers(
    timeline: Timeline, slo: Slo, by: str = "e2e", progress: ShowProgress = no_progress
) -> Outliers:
    """Finds the slow requests of a timeline. Those that have not ended count by their time so far.

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
    reader.add_unfinished()
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
        # One that has just arrived is not slow.
        known = [row for row in rows if (row.figures[by] or 0.0) > 0 or not row.activity]
        known = [row for row in known if row.figures[by] is not None]
        key = lambda row: row.figures[by] or 0.0  # noqa: E731
        slow = sorted(known, key=key)[len(known) - math.ceil(len(known) / _SLOW_SHARE) :]
        rule = f"the slowest tenth by {FIGURES[by]}"
        excluded = {_FIELD_OF[by]}
    slow.sort(key=lambda row: (not row.activity, -key(row)))
    names = {id(row) for row in slow}
    # What is not slow so far may become so.
    others = [row for row in rows if id(row) not in names and not row.activity]
    slow_requests = [
        SlowRequest(row.request_id, key(row), row.missed, row.activity) for row in slow
    ]
    sentence = of_whole(reader.state).sentence
    slower = _slower(next(iter(slo.limits), by), slow, others)
    differences = _differences(slow, others, excluded, slower)
    num_open = len(rows) - len(slow) - len(others)
    return Outliers(rule, slow_requests, len(others), differences, num_open, sentence)


class _RowsReader(Reader):
    """Reads the fields of each request when it finishes.

    Args:
        slo: The objectives.
    """

    def __init__(self, slo: Slo) -> None:
        self.rows: list[_Row] = []
        self._slo = slo
        self._before: dict[str, _Before] = {}
        """The sums before each request arrived."""
        self.state = EngineState()
        """The state as of the last event."""

    def start(self, position: int, state: EngineState) -> None:
        self.state = state
        self._before.clear()

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        state = self.state
        if isinstance(event, RequestArrived):
            wait = state.requests[event.request_id].wait
            sums = state.limits.sums
            self._before[event.request_id] = _Before(wait.between_before, sums)
        if isinstance(event, RequestFinished):
            request = state.requests.get(event.request_id)
            if request is not None:
                before = self._before.pop(request.request_id, None)
                self.rows += _row(state, request, self._slo, before, event.time)

    def add_unfinished(self) -> None:
        """Adds the requests that have not ended, with their time so far."""
        for request in self.state.requests.values():
            if request.finish_reason is None:
                before = self._before.get(request.request_id)
                self.rows += _row(self.state, request, self._slo, before, self.state.time)


def _row(
    state: EngineState, request: RequestState, slo: Slo, before: _Before | None, now: float
) -> Iterator[_Row]:
    """Yields the fields of a request that ends at `now`, or has not ended by then."""
    sequence = state.sequences.get(request.seq_ids[0]) if request.seq_ids else None
    is_finished = sequence is not None and SequenceStatus.is_finished(sequence.status)
    if sequence is None or is_finished is (request.finish_reason is None):
        return
    values = {
        key: field.value(request, sequence, now)
        for key, field in FIELDS.items()
        if key not in _NOT_COMPARED
    }
    values["lora"] = request.lora
    wait = wait_until(state, request, now)
    for cause, seconds in wait.by_cause.items():
        values[f"waited: {cause_in_words(cause).label}"] = seconds
    if before is not None:
        values |= _times(request, state.blocked.between - before.between_steps)
        values |= _facts(request, sequence, state.limits.sums, before.sums)
    yield _Row(
        request.request_id,
        request.metrics.arrival_time,
        measured(request, sequence, now),
        missed(slo, request, sequence, now),
        values,
        "" if is_finished else activity(state, request),
    )


def _facts(
    request: RequestState,
    sequence: SequenceState,
    sums: Mapping[str, float],
    before: Mapping[str, float],
) -> dict[str, Value]:
    """Returns the facts of the steps in the time of a request."""

    def get(key: str) -> float:
        return sums.get(key, 0.0) - before.get(key, 0.0)

    facts: dict[str, Value] = {}
    graphs = get("eager_steps") + get("graph_steps")
    for key, part, whole in (
        ("step: eager", get("eager_steps"), graphs),
        ("step: scheduler", get("scheduler"), get("steps")),
        ("step: empty", get("empty"), get("busy")),
        ("step: recomputed", get("lost"), get("tokens")),
        ("step: accepted", sequence.num_accepted_tokens or 0, sequence.num_draft_tokens or 0),
    ):
        if whole > 0:
            facts[key] = part / whole
    facts["step: encoder"] = request.num_encoder_inputs
    facts["step: loaded"] = sequence.num_external_tokens
    return facts


def _times(request: RequestState, between_steps: float) -> dict[str, Value]:
    """Returns how a request spent the seconds in which it did not wait.

    Args:
        request: The request, which has finished.
        between_steps: The seconds between steps since it arrived.
    """
    wait = request.wait
    host = max(between_steps - wait.between, 0.0)
    prefill = sum(
        span.end - span.start
        for span in request.spans
        if span.kind == "prefill" and span.end is not None
    )
    times = {_HOST: host, _PREFILL: prefill}
    if (e2e := latency.e2e_latency(request.metrics)) is not None:
        times[_DECODE] = max(e2e - wait.total - host - prefill, 0.0)
    return {key: seconds for key, seconds in times.items() if seconds > 0}


class _Slower(NamedTuple):
    """The difference of slow requests and the others, in their medians."""

    seconds: float
    """0 if these are no seconds of a request's time."""
    num_steps: float
    """The steps of a slow request."""


def _slower(figure: str, slow: list[_Row], others: list[_Row]) -> _Slower:
    if figure in ("itl", "tpot") or not slow or not others:
        return _Slower(0.0, 0.0)
    one, other = (
        _middle(_numbers([row.figures[figure] for row in rows])) for rows in (slow, others)
    )
    steps = _middle(_numbers([row.values.get("steps") for row in slow]))
    return _Slower(max(one - other, 0.0), steps)


def _matters(key: str, slow: float, others: float, slower: _Slower) -> bool:
    """Returns whether a difference of two medians explains a part of why requests are slow."""
    if key in _SHARES:
        return abs(slow - others) >= _LEAST_EXPLAINED
    seconds = slow - others
    if key == "step: scheduler":
        seconds *= slower.num_steps
    elif not key.startswith(("time:", "waited:")) or key in _RESTATEMENTS:
        return abs(seconds) >= _LEAST_EXPLAINED * max(abs(slow), abs(others))
    if not slower.seconds:
        return seconds >= _LEAST_EXPLAINED * slow
    return seconds >= _LEAST_EXPLAINED * slower.seconds


def _differences(
    slow: list[_Row], others: list[_Row], excluded: set[str], slower: _Slower
) -> list[FieldDifference]:
    if not slow or not others:
        return []
    critical = _CRITICAL * math.sqrt((len(slow) + len(others)) / (len(slow) * len(others)))
    keys = dict.fromkeys(key for row in (*slow, *others) for key in row.values)
    differences = []
    for key in keys:
        if key in excluded:
            continue
        difference = _difference(key, _column(slow, key), _column(others, key), slower)
        # Two figures that print the same say nothing, however their distributions differ.
        if (
            difference is not None
            and difference.distance > critical
            and (difference.slow != difference.others)
        ):
            difference.is_cause = key not in _RESTATEMENTS
            differences.append(difference)
    return sorted(
        differences, key=lambda difference: (not difference.is_cause, -difference.distance)
    )


def _column(rows: list[_Row], key: str) -> list[Value]:
    is_time = key.startswith(("time:", "waited:"))  # a cause that a request did not wait for
    return [row.values.get(key, 0.0 if is_time else None) for row in rows]


def _difference(
    key: str, slow: list[Value], others: list[Value], slower: _Slower
) -> FieldDifference | None:
    title = FIELDS[key].help if key in FIELDS else key
    if key in _FACTS:
        title = _FACTS[key].title
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
    medians = _middle(numbers[0]), _middle(numbers[1])
    if not _matters(key, *medians, slower):
        return None
    slow_median, other_median = (_shown(key, median) for median in medians)
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


def _middle(values: list[float]) -> float:
    """Returns the median of sorted values; 0 without any."""
    return percentile(values, 50) or 0.0


def _shown(key: str, median: float) -> str:
    field: Field | None = FIELDS.get(key)
    show: Callable[[float | None], str] = fmt.seconds if field is None else field.format
    if key in _FACTS:
        show = _FACTS[key].format
    return f"median {show(median)}"


def _most_common(counts: Counter[Value]) -> str:
    total = counts.total()
    return ", ".join(
        f"{fmt.shortened(str(word or 'none'), _MAX_WORD)} {fmt.percent(number, total)}"
        for word, number in counts.most_common(_MAX_SHOWN_WORDS)
    )
