"""The requests that two runs have in common, and their figures in both."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from seqtop.diff.run import SERVED, RunDecisions, RunRequest
from seqtop.state.percentiles import LeastPercentile, is_better, least_percentile
from seqtop.state.request_times import MEASURES, Progress, RequestTime
from seqtop.state.wait_causes import CAUSES, cause_in_words

PairedBy: TypeAlias = Literal["request id", "prompt and order of arrival"]
"""The properties by which requests of two runs are taken for the same."""
PERCENTS = (50, 99)


class Figure(msgspec.Struct, kw_only=True):
    """A figure of both runs."""

    name: str
    unit: str
    a: float | None
    b: float | None
    better: int = 0
    """1 if more is better, -1 if less is, and 0 if neither."""
    of_requests: bool = False
    """True if it is one of the requests that both runs have, from their arrivals on; otherwise it
    counts what is in the recording."""
    a_is_least: bool = False
    """True if the figure of the first run may be higher: some of its requests had not ended."""
    b_is_least: bool = False

    @property
    def change(self) -> float | None:
        """The relative change from the first run to the second; `None` if it is not known."""
        if self.a is None or self.b is None or (self.a_is_least and self.b_is_least):
            return None
        return self.b / self.a - 1 if self.a > 0 else None

    @property
    def is_better(self) -> bool | None:
        """True if the second run is better, False if it is worse; `None` if that is not known."""
        return is_better(
            self.a,
            self.b,
            self.better,
            a_is_least=self.a_is_least,
            b_is_least=self.b_is_least,
        )


class Pairs(NamedTuple):
    """The requests that two runs have in common."""

    by: PairedBy
    of_a: dict[int, int]
    """Their numbers in the first run, by those in the second."""

    def same_prompts(self, a: Sequence[RunRequest], b: Sequence[RunRequest]) -> dict[int, int]:
        """Returns those whose prompts are the same, as far as these are recorded."""
        return {
            number: of_a
            for number, of_a in self.of_a.items()
            if a[of_a].num_prompt_tokens == b[number].num_prompt_tokens
            and (a[of_a].prompt_hash == b[number].prompt_hash or not _are_known(a[of_a], b[number]))
        }


def pair(a: Sequence[RunRequest], b: Sequence[RunRequest]) -> Pairs:
    """Pairs requests by their ids, or by prompts in order of arrival if no id is in both runs.

    If the prompts of a run are not recorded, those of equal length are taken for the same.
    """
    by_id = _pairs(a, b, lambda request: request.request_id)
    if by_id:
        return Pairs("request id", by_id)
    are_known = _are_known(*a, *b)

    def content(request: RunRequest) -> Hashable:
        return request.num_prompt_tokens, request.prompt_hash if are_known else None

    return Pairs("prompt and order of arrival", _pairs(a, b, content))


def _are_known(*requests: RunRequest) -> bool:
    """Returns whether the prompts of requests are recorded."""
    return all(request.prompt_hash is not None for request in requests)


def _pairs(
    a: Sequence[RunRequest], b: Sequence[RunRequest], key: Callable[[RunRequest], Hashable]
) -> dict[int, int]:
    numbers: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for number, request in enumerate(a):
        numbers[key(request)].append(number)
    return {
        number: same.popleft()
        for number, request in enumerate(b)
        if (same := numbers.get(key(request)))
    }


class _Side(NamedTuple):
    """The requests of one run."""

    requests: list[RunRequest]
    end: float
    """The end of the recording, epoch seconds."""

    def count(self, *ends: str | None) -> int:
        return sum(request.end in ends for request in self.requests)

    def times(self, key: str) -> list[RequestTime]:
        """Returns the times of the requests; of TPOT, only of those with one sequence."""
        return [
            time
            for request in self.requests
            if (key != "tpot" or request.num_sequences == 1)
            and (time := MEASURES[key](_progress(request, self.end))) is not None
            and 0 <= time.seconds < math.inf
        ]

    def waits(self) -> dict[str, float]:
        seconds: defaultdict[str, float] = defaultdict(float)
        for request in self.requests:
            for cause, own in request.seconds_waiting.items():
                seconds[cause] += own
        return seconds


def figures(a: RunDecisions, b: RunDecisions, pairs: Pairs) -> list[Figure]:
    """Returns the figures of the requests that both runs have."""
    sides = (
        _Side([a.requests[number] for number in pairs.of_a.values()], a.end_time),
        _Side([b.requests[number] for number in pairs.of_a], b.end_time),
    )
    found = [
        _figure("served", "requests", [float(side.count(*SERVED)) for side in sides], 1),
        _figure("not ended", "requests", [float(side.count(None)) for side in sides], -1),
    ]
    others = [len(side.requests) - side.count(None, *SERVED) for side in sides]
    if any(others):
        found.append(_figure("aborted or ignored", "requests", [*map(float, others)], -1))
    for key, title in _TITLES.items():
        times = [side.times(key) for side in sides]
        for percent in PERCENTS:
            values = [_percentile(own, percent) for own in times]
            found.append(
                Figure(
                    name=f"{title}, p{percent}",
                    unit="s",
                    a=values[0] and values[0].value,
                    b=values[1] and values[1].value,
                    a_is_least=values[0] is not None and values[0].is_least,
                    b_is_least=values[1] is not None and values[1].is_least,
                    better=-1,
                    of_requests=True,
                )
            )
    return [*found, *_waits(*(side.waits() for side in sides))]


def _figure(name: str, unit: str, values: Sequence[float], better: int) -> Figure:
    return Figure(name=name, unit=unit, a=values[0], b=values[1], better=better, of_requests=True)


def _waits(a: dict[str, float], b: dict[str, float]) -> Iterator[Figure]:
    """Yields the seconds that requests have waited, by cause."""
    given = a.keys() | b.keys()
    causes = [cause for cause in CAUSES if cause in given]
    for cause in (*causes, *sorted(given.difference(causes))):
        name = f"waiting: {cause_in_words(cause).label}"
        yield _figure(name, "request-s", [a.get(cause, 0.0), b.get(cause, 0.0)], -1)


def _percentile(times: Sequence[RequestTime], percent: float) -> LeastPercentile | None:
    known = [time.seconds for time in times if not time.is_least]
    return least_percentile(known, [time.seconds for time in times if time.is_least], percent)


def _progress(request: RunRequest, end: float) -> Progress:
    return Progress(request.metrics, request.num_output_tokens, request.end in SERVED, end)


_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end", "queue": "time in queue"}
"""The title of each figure of `seqtop.state.request_times.MEASURES` that is compared."""
