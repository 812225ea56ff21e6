"""Latencies derived from `RequestMetrics`."""

from dataclasses import replace
from typing import Any

import pytest

from seqtop.sequence import RequestMetrics
from seqtop.sequence.latency import (
    decode_time,
    e2e_latency,
    execute_ratio,
    itl,
    itl_so_far,
    queue_ratio,
    throughput,
    ttft,
)

ARRIVED = RequestMetrics(100.0, 100.0, None, None, None)
SCHEDULED = replace(ARRIVED, first_scheduled_time=102.0, time_in_queue=2.0)
FIRST_TOKEN = replace(SCHEDULED, first_token_time=103.0, last_token_time=103.0)
RUNNING = replace(FIRST_TOKEN, last_token_time=105.0, model_execute_time=3.0)
FINISHED = replace(RUNNING, last_token_time=107.0, finished_time=108.0, model_execute_time=4.0)
ABORTED = replace(ARRIVED, finished_time=101.0)
INSTANT = replace(ABORTED, finished_time=100.0, time_in_queue=0.0)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        # ttft, end to end, decode, itl of 5 tokens, so far, queue, execute, throughput of 5
        (ARRIVED, (None, None, None, None, None, None, None, None)),
        (SCHEDULED, (None, None, None, None, None, None, None, None)),
        (FIRST_TOKEN, (3.0, None, None, None, 0.0, None, None, None)),
        (RUNNING, (3.0, None, None, None, 0.5, None, None, None)),
        (FINISHED, (3.0, 8.0, 5.0, 1.25, 1.0, 0.25, 0.5, 0.625)),
        (ABORTED, (None, 1.0, None, None, None, None, None, 5.0)),
        (INSTANT, (None, 0.0, None, None, None, None, None, None)),
    ],
    ids=["arrived", "scheduled", "first token", "running", "finished", "aborted", "instant"],
)
def test_figures(metrics: RequestMetrics, expected: tuple[Any, ...]) -> None:
    figures = (
        ttft(metrics),
        e2e_latency(metrics),
        decode_time(metrics),
        itl(metrics, 5),
        itl_so_far(metrics, 5),
        queue_ratio(metrics),
        execute_ratio(metrics),
        throughput(metrics, 5),
    )
    assert figures == expected


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_there_is_no_latency_between_fewer_than_two_tokens(num_tokens: int) -> None:
    assert itl(FINISHED, num_tokens) is None
    assert itl_so_far(FINISHED, num_tokens) is None
