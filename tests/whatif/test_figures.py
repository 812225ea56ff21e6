"""The figures of a run, counted from messages whose figures are known."""

import math

import pytest

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state.slo import Slo
from seqtop.whatif.figures import Distribution, FigureCounter, RunFigures, distribution
from seqtop.wire.messages import Event, Heartbeat, RequestFinished
from tests.support.events import arrival, engine_info, preemption, stats, step, update, wait_reason

STOPPED, CAPPED = SequenceStatus.FINISHED_STOPPED, SequenceStatus.FINISHED_LENGTH_CAPPED
ABORTED, IGNORED = SequenceStatus.FINISHED_ABORTED, SequenceStatus.FINISHED_IGNORED


def metrics(
    arrived: float,
    scheduled: float | None = None,
    first: float | None = None,
    finished: float | None = None,
) -> RequestMetrics:
    queued = None if scheduled is None else scheduled - arrived
    return RequestMetrics(arrived, first or arrived, scheduled, first, queued, finished)


def ended(
    number: int,
    own: RequestMetrics,
    status: SequenceStatus = STOPPED,
    seq_ids: tuple[int, ...] = (),
) -> RequestFinished:
    return RequestFinished(
        request_id=f"req-{number}", time=99.0, status=status, metrics=own, seq_ids=[*seq_ids]
    )


def counted(*events: Event, slo: Slo | None = None, num_hits_before: int = 0) -> RunFigures:
    counter = FigureCounter(slo, num_hits_before=num_hits_before)
    for event in events:
        counter.count(event)
    return counter.figures()


def all_equal(value: float | None) -> Distribution:
    return Distribution(value, value, value)


FIRST, SECOND = metrics(1.0, 10.0, 11.0), metrics(2.0, 11.0)
RUN: tuple[Event, ...] = (
    *(engine_info(), arrival(1), arrival(2), arrival(3)),
    step(
        0,
        start_time=10.0,
        time=11.0,
        metrics={"req-1": FIRST},
        sequences=[update(1, tokens=[5])],
        wait_reasons=[wait_reason("req-2", "no_blocks"), wait_reason("req-3", "paused")],
        preemptions=[preemption("req-9", lost=3), preemption("req-9", lost=4)],
        stats=stats(prefix_cache_hits=7),
    ),
    step(
        1,
        start_time=12.0,
        time=14.0,
        metrics={"req-1": FIRST, "req-2": SECOND, "req-3": metrics(3.0)},
        sequences=[update(1, tokens=[5, 6]), update(2), update(9, tokens=[1, 2, 3, 4])],
        wait_reasons=[wait_reason("req-3", "no_blocks")],
        preemptions=[preemption("req-9", lost=5)],
        stats=stats(prefix_cache_hits=9),
    ),
    ended(1, metrics(1.0, 10.0, 11.0, 15.0)),
    Heartbeat(time=50.0, step=1),
    step(2, start_time=13.0, time=13.5, wait_reasons=[wait_reason("req-3", "seq_limit")]),
)


def test_the_figures_of_a_run() -> None:
    run = counted(*RUN)
    assert run == RunFigures(
        num_steps=3,
        makespan=4.0,
        num_requests=1,
        num_output_tokens=7,
        num_preemptions=3,
        num_lost_tokens=12,
        queue_steps=Distribution(0.5, 0.9, 0.99),
        ttft=all_equal(10.0),
        itl=all_equal(1.5),
        tpot=all_equal(2.0),
        e2e=all_equal(14.0),
        blocked={"no_blocks": 2, "seq_limit": 1},
    )
    assert run.throughput == 7 / 4.0
    assert counted(*RUN[:6]).num_hit_tokens == 9
    assert counted(*RUN[:6], num_hits_before=2).num_hit_tokens == 7
    assert counted(*RUN[:6], num_hits_before=10).num_hit_tokens == 0
    nothing = counted(engine_info())
    assert (nothing.makespan, nothing.throughput, nothing.share_within_slo) == (0.0, None, None)
    assert RunFigures(num_output_tokens=1, makespan=0.5).throughput == 2.0
    assert counted(step(0, start_time=0.25, time=0.5)).makespan == 0.25
    late = counted(step(0), arrival(2), step(1), step(2, metrics={"req-2": SECOND}))
    assert late.queue_steps == all_equal(1.0)


@pytest.mark.parametrize(
    ("slo", "within"),
    [
        (Slo(), {}),
        (Slo(ttft=10.0), {"ttft": 1}),
        (Slo(ttft=9.0), {"ttft": 0}),
        (Slo(e2e=14.0), {"e2e": 1}),
        (Slo(e2e=13.5, tpot=2.0), {"e2e": 0, "tpot": 1}),
        (Slo(tpot=1.5, queue=9.0), {"tpot": 0, "queue": 1}),
    ],
)
def test_an_objective_is_met_up_to_its_limit(slo: Slo, within: dict[str, int]) -> None:
    """Of two requests, one of which the engine ignored."""
    run = counted(*RUN, ended(2, metrics(2.0), IGNORED), slo=slo)
    assert (run.num_requests, run.num_ignored, run.num_within) == (2, 1, within)
    assert run.num_within_slo == (min(within.values()) if within else None)
    assert run.share_within_slo == (min(within.values()) / 2 if within else None)
    shares = {key: run.share_within(key) for key in ("ttft", "tpot", "queue", "e2e")}
    expected = {key: within[key] / 2 if key in within else None for key in shares}
    assert shares == expected


def test_shares_need_a_request() -> None:
    run = RunFigures(num_within={"ttft": 0}, num_within_slo=0)
    assert (run.share_within("ttft"), run.share_within_slo) == (None, None)
    run.num_requests = 4
    assert (run.share_within("ttft"), run.share_within_slo) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("status", "num_requests", "num_ignored", "e2e", "tpot"),
    [
        (STOPPED, 1, 0, 14.0, 2.0),
        (CAPPED, 1, 0, 14.0, 2.0),
        (IGNORED, 1, 1, None, None),
        (ABORTED, 0, 0, None, None),
    ],
)
def test_an_end_counts_by_its_status(
    status: SequenceStatus,
    num_requests: int,
    num_ignored: int,
    e2e: float | None,
    tpot: float | None,
) -> None:
    """The TTFT counts in any case, and once; of several sequences, the longest gives the TPOT."""
    last = ended(1, metrics(1.0, 10.0, 11.0, 15.0), status, (1, 9, 50))
    run = counted(*RUN[:3], arrival(3), *RUN[4:6], last)
    assert (run.num_requests, run.num_ignored) == (num_requests, num_ignored)
    assert run.ttft == all_equal(10.0)
    assert run.e2e == all_equal(e2e)
    assert run.tpot == (all_equal(4.0 / 3) if tpot else all_equal(None))
    again = counted(*RUN[:6], last, last)
    assert again.ttft == all_equal(10.0)
    assert again.e2e == all_equal(e2e)


def test_a_sequence_that_is_removed_begins_anew() -> None:
    removed = update(1, tokens=[6], is_removed=True)
    times = [(10.0, 11.0), (11.0, 13.0), (13.0, 16.0)]
    updates = [update(1, tokens=[5]), removed, update(1, tokens=[7])]
    steps = [
        step(number, start_time=start, time=time, sequences=[own])
        for number, ((start, time), own) in enumerate(zip(times, updates, strict=True))
    ]
    assert counted(*steps).itl == all_equal(2.0)


def test_a_distribution_leaves_out_what_is_not_finite() -> None:
    values = [*map(float, range(11)), math.inf, math.nan, -math.inf]
    assert distribution(values[::-1]) == Distribution(5.0, 9.0, 9.9)
    assert distribution([math.inf]) == Distribution()
