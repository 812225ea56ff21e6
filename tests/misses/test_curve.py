"""The misses that are predicted for larger pools, beside those of real runs with these pools."""

import pytest

from tests.support.cache_runs import WORKLOADS, misses_of, run

MAX_ERROR = 0.05
"""The largest error, as a part of the misses of the recorded run; `docs/explain.md` has a table."""
QUICK = ("documents", "documents, preemptions", "chats", "documents in turn")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.release)
        for name in WORKLOADS
    ],
)
def test_real_runs_with_more_blocks_have_the_predicted_misses(name: str) -> None:
    requests, settings = WORKLOADS[name].requests(), WORKLOADS[name].settings
    misses = misses_of(run(requests, **settings))
    totals = misses.totals()
    points = {point.percent: point for point in misses.curve(totals)}
    assert points[0].num_missed_blocks == totals.num_missed_first > 0
    # With the recorded size, the repeated pool finds what the engine found.
    assert totals.num_differing <= totals.num_blocks * 0.005
    for percent in (10, 20, 50):
        predicted = points[percent]
        num_blocks = predicted.num_gpu_blocks
        real = misses_of(run(requests, **(settings | {"num_gpu_blocks": num_blocks}))).totals()
        error = abs(predicted.num_missed_blocks - real.num_missed_first)
        assert error <= MAX_ERROR * totals.num_missed_first, percent
