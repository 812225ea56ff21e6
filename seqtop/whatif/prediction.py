"""The figures of a recorded run beside those of the predicted one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from seqtop.diff.run import Run, RunRequest
from seqtop.state.wait_causes import cause_in_words
from seqtop.text import format as fmt

_PERCENTILES = (50, 90, 99)
_MAX_CHANGED = 5
_NOTABLE_SECONDS = 1e-3
"""Changes of waits below this are not named."""


class Figure(msgspec.Struct):
    """A figure of the recorded run, of the model with unchanged settings, and of the prediction."""

    name: str
    unit: str
    recorded: float | None
    unchanged: float | None
    """The figure that the model of times gives for the recorded settings: its own error."""
    predicted: float | None


class ChangedRequest(msgspec.Struct):
    """A request whose latency changes much."""

    request_id: str
    e2e: float
    """Seconds from arrival to end with the recorded settings, by the model."""
    predicted_e2e: float
    waits: dict[str, float]
    """The changes of its waits in seconds, by cause."""
    num_preemptions: int
    predicted_num_preemptions: int


def figures(recorded: Run, unchanged: Run, predicted: Run) -> list[Figure]:
    """Returns the figures of the three runs."""
    runs = recorded, unchanged, predicted
    rows = [Figure(name, unit, *map(figure, runs)) for name, unit, figure in _totals()]
    for name, latency in (("TTFT", _ttft), ("TPOT", _tpot), ("E2E", _e2e)):
        for percent in _PERCENTILES:
            values = [_percentile([latency(own) for own in run.requests], percent) for run in runs]
            rows.append(Figure(f"{name} p{percent}", "s", *values))
    return rows


def changed_requests(unchanged: Run, predicted: Run) -> list[ChangedRequest]:
    """Returns the requests whose latencies change most, those that lose before those that gain."""
    pairs: list[tuple[float, ChangedRequest]] = []
    for before in unchanged.requests:
        number = predicted.number(before.request_id)
        after = predicted.requests[number] if number is not None else None
        if after is None or before.e2e is None or after.e2e is None:
            continue
        causes = before.seconds_waiting.keys() | after.seconds_waiting.keys()
        waits = {
            cause: after.seconds_waiting.get(cause, 0.0) - before.seconds_waiting.get(cause, 0.0)
            for cause in causes
        }
        changed = ChangedRequest(
            before.request_id,
            before.e2e,
            after.e2e,
            {cause: change for cause, change in waits.items() if abs(change) >= _NOTABLE_SECONDS},
            before.num_preemptions,
            after.num_preemptions,
        )
        pairs.append((abs(after.e2e - before.e2e), changed))
    pairs.sort(key=lambda pair: -pair[0])
    return [changed for change, changed in pairs[:_MAX_CHANGED] if change >= _NOTABLE_SECONDS]


def describe(changed: ChangedRequest) -> str:
    """Returns a sentence on a request whose latency changes."""
    parts = [
        f"{cause_in_words(cause).label} {_signed(seconds)}"
        for cause, seconds in sorted(changed.waits.items(), key=lambda item: -abs(item[1]))
    ]
    if changed.num_preemptions != changed.predicted_num_preemptions:
        parts.append(f"preemptions {changed.num_preemptions} → {changed.predicted_num_preemptions}")
    causes = f" (waits: {', '.join(parts)})" if parts else " (in longer or shorter steps)"
    return (
        f"{changed.request_id}: E2E {fmt.seconds(changed.e2e)} →"
        f" {fmt.seconds(changed.predicted_e2e)}{causes}"
    )


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{fmt.seconds(abs(seconds))}"


def _totals() -> list[tuple[str, str, Callable[[Run], float | None]]]:
    return [
        ("steps", "", lambda run: len(run.steps)),
        ("makespan", "s", lambda run: run.duration),
        ("output tokens per second", "1/s", _throughput),
        ("preemptions", "", lambda run: sum(own.num_preemptions for own in run.requests)),
        ("tokens computed twice", "", lambda run: sum(own.num_lost_tokens for own in run.requests)),
        ("prefix-cache hits, tokens", "", _hits),
    ]


def _throughput(run: Run) -> float | None:
    tokens = sum(request.num_output_tokens for request in run.requests)
    return tokens / run.duration if run.duration > 0 else None


def _hits(run: Run) -> float:
    return sum(request.num_cached_tokens or 0 for request in run.requests)


def _ttft(request: RunRequest) -> float | None:
    return request.ttft


def _e2e(request: RunRequest) -> float | None:
    return request.e2e


def _tpot(request: RunRequest) -> float | None:
    """Returns the seconds per output token after the first."""
    metrics, count = request.metrics, request.num_output_tokens
    if metrics.finished_time is None or metrics.first_token_time is None or count < 2:
        return None
    return (metrics.last_token_time - metrics.first_token_time) / (count - 1)


def _percentile(values: Sequence[float | None], percent: int) -> float | None:
    """Returns the smallest value that at least `percent` percent of the values do not exceed."""
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    return known[max(math.ceil(len(known) * percent / 100) - 1, 0)] if known else None
