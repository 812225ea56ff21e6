"""The latencies of requests up to the end of a run, also of those that have not come so far.

A request that has not had its first token, or has not ended, has waited at least until then. It
counts with that time, so that no run looks better because its slowest requests had not ended yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from seqtop.sequence import RequestMetrics, latency


class RequestTime(NamedTuple):
    """A time of a request in seconds."""

    seconds: float
    is_least: bool
    """True if the request had not come so far: it takes at least this time."""


class Progress(NamedTuple):
    """The progress of a request, or of one of its sequences."""

    metrics: RequestMetrics
    num_tokens: int
    """Its output tokens."""
    is_served: bool
    """True if it has ended with a complete output."""
    end: float
    """The end of the run, epoch seconds: an unfinished request has taken the time until then."""


Measure: TypeAlias = Callable[[Progress], RequestTime | None]
"""Measures a latency; `None` if there is none to measure."""


def _ttft(request: Progress) -> RequestTime:
    return _time(request, latency.ttft(request.metrics))


def _e2e(request: Progress) -> RequestTime:
    return _time(request, latency.e2e_latency(request.metrics) if request.is_served else None)


def _queue(request: Progress) -> RequestTime:
    metrics = request.metrics
    queued = metrics.time_in_queue
    if queued is None and metrics.first_scheduled_time is not None:
        queued = metrics.first_scheduled_time - metrics.arrival_time
    return _time(request, queued)


def _time(request: Progress, seconds: float | None) -> RequestTime:
    if seconds is not None:
        return RequestTime(seconds, is_least=False)
    return RequestTime(max(_until(request) - request.metrics.arrival_time, 0.0), is_least=True)


def _tpot(request: Progress) -> RequestTime | None:
    return _between_tokens(request, latency.itl(request.metrics, request.num_tokens))


def _itl(request: Progress) -> RequestTime | None:
    return _between_tokens(request, latency.itl_so_far(request.metrics, request.num_tokens))


def _between_tokens(request: Progress, served: float | None) -> RequestTime | None:
    """Returns the mean time between two tokens; `None` for too few tokens.

    Of a request that has not ended, the time since its last token counts as far as it is longer.
    """
    count, first = request.num_tokens, request.metrics.first_token_time
    if not count or first is None:
        return None
    if request.is_served:
        return None if served is None else RequestTime(served, is_least=False)
    so_far = latency.itl_so_far(request.metrics, count) or 0.0
    return RequestTime(max(so_far, (_until(request) - first) / count), is_least=False)


def _until(request: Progress) -> float:
    finished = request.metrics.finished_time
    return request.end if finished is None else finished


MEASURES: Final[Mapping[str, Measure]] = {
    "ttft": _ttft,
    "itl": _itl,
    "tpot": _tpot,
    "queue": _queue,
    "e2e": _e2e,
}
"""The measure of each figure that `seqtop.state.slo.FIGURES` names."""
