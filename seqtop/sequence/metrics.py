"""Times and durations of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RequestMetrics:
    """Times of a request, in epoch seconds, and durations, in seconds.

    An event that has not happened yet is None.

    Attributes:
        arrival_time: The time of arrival at the engine.
        last_token_time: The time of the latest token; before the first one, the arrival.
        first_scheduled_time: The time of the first scheduling.
        first_token_time: The time of the first token.
        time_in_queue: The seconds from arrival to the first scheduling.
        finished_time: The time of the end, including aborts.
        scheduler_time: The sum over the scheduler runs that considered the request.
        model_forward_time: The sum over the request's forward passes.
        model_execute_time: The sum over the request's executions: the forward pass, waiting for
            workers and device, and sampling.
        spec_token_acceptance_counts: Accepted tokens by position in a speculative draft. The first
            is the target model's own token, so its count is the number of forward passes.
    """

    arrival_time: float
    last_token_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    time_in_queue: float | None
    finished_time: float | None = None
    scheduler_time: float | None = None
    model_forward_time: float | None = None
    model_execute_time: float | None = None
    spec_token_acceptance_counts: list[int] | None = None
