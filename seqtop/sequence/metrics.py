"""When things happened to a request, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RequestMetrics:
    """The life of a request in points of time and sums, all in seconds.

    Points of time are Unix timestamps; what has not happened yet is None.

    Attributes:
        arrival_time: The request reached the engine.
        last_token_time: Its latest token was generated; until then, its arrival.
        first_scheduled_time: It was scheduled for the first time.
        first_token_time: Its first token was generated.
        time_in_queue: From arrival to being scheduled for the first time.
        finished_time: It was finished, in whatever way.
        scheduler_time: Sum over the scheduler runs that considered it.
        model_forward_time: Sum over the forward passes it was part of.
        model_execute_time: Sum over the executions it was part of: the forward pass, waiting for
            workers and device, and sampling.
        spec_token_acceptance_counts: Accepted tokens by position within a speculative draft. The
            first is the target model's own token, so its count is the number of forward passes.
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
