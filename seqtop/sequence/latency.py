"""Latencies derived from `RequestMetrics`; each is None while it is unknown."""

from __future__ import annotations

from seqtop.sequence.metrics import RequestMetrics


def ttft(metrics: RequestMetrics) -> float | None:
    """Returns the time to first token: seconds from arrival to the first token."""
    return _between(metrics.arrival_time, metrics.first_token_time)


def e2e_latency(metrics: RequestMetrics) -> float | None:
    """Returns the end-to-end latency: seconds from arrival to the finish."""
    return _between(metrics.arrival_time, metrics.finished_time)


def decode_time(metrics: RequestMetrics) -> float | None:
    """Returns the seconds from the first token to the finish: `e2e_latency` minus `ttft`."""
    return _between(metrics.first_token_time, metrics.finished_time)


def itl(metrics: RequestMetrics, num_tokens: int) -> float | None:
    """Returns the mean inter-token latency of a finished request, in seconds.

    It is None for fewer than two tokens.
    """
    return _ratio(decode_time(metrics), max(num_tokens - 1, 0))


def itl_so_far(metrics: RequestMetrics, num_tokens: int) -> float | None:
    """Returns the mean seconds between the `num_tokens` tokens generated until now.

    Unlike `itl` it ends at the last token, so it is known while a request runs. It is None for
    fewer than two tokens.
    """
    return _ratio(
        _between(metrics.first_token_time, metrics.last_token_time), max(num_tokens - 1, 0)
    )


def queue_ratio(metrics: RequestMetrics) -> float | None:
    """Returns the share of the end-to-end latency spent waiting to be scheduled, from 0 to 1."""
    return _ratio(metrics.time_in_queue, e2e_latency(metrics))


def execute_ratio(metrics: RequestMetrics) -> float | None:
    """Returns the share of the end-to-end latency spent in model execution, from 0 to 1."""
    return _ratio(metrics.model_execute_time, e2e_latency(metrics))


def throughput(metrics: RequestMetrics, num_tokens: int) -> float | None:
    """Returns tokens per second of end-to-end latency."""
    return _ratio(num_tokens, e2e_latency(metrics))


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
