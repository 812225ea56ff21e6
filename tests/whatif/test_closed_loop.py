"""The requests of a closed loop, each of which waits for the end of another one."""

import pytest

from seqtop.whatif.workload import Answer, WorkloadRequest, predecessors
from tests.support.events import arrival


@pytest.mark.parametrize(
    ("times", "waits"),
    [
        ([(0, 5), (6, 9), (10, None)], {1: 0, 2: 1}),  # one client
        ([(0, 5), (0, 9), (6, 12), (10, 14)], {2: 0, 3: 1}),  # two clients
        ([(0, 5), (0, 5), (6, 9)], {2: 1}),  # the last one that ended
        ([(0, 5), (1, 6), (2, 7)], {}),  # as many as run at once
        ([(3, 5), (0, 2)], {0: 1}),  # numbered by another clock
        ([(0, 5), (5, 6)], {1: 0}),
    ],
)
def test_a_request_waits_for_the_last_one_that_ended_before_it(
    times: list[tuple[float, float | None]], waits: dict[int, int]
) -> None:
    requests = {}
    for number, (start, end) in enumerate(times):
        message = arrival(number)
        message.arrival_time = start
        requests[message.request_id] = WorkloadRequest(message, Answer(), ended_at=end)
    assert predecessors(requests) == {f"req-{a}": f"req-{b}" for a, b in waits.items()}
