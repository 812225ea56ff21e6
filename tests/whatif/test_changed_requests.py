"""The requests that a prediction changes most, and their causes."""

import pytest

from seqtop.diff.run import RunRequest
from seqtop.sequence import RequestMetrics
from seqtop.whatif.changed_requests import ChangedRequest, changed_requests, describe
from tests.support.decided_runs import a_run


def a_request(
    name: str,
    e2e: float | None,
    end: str = "FINISHED_STOPPED",
    waits: dict[str, float] | None = None,
    num_preemptions: int = 0,
) -> RunRequest:
    metrics = RequestMetrics(0.0, 0.0, None, None, None, e2e)
    return RunRequest(
        *(name, 3, 0, metrics),
        end=end,
        seconds_waiting=waits or {},
        num_preemptions=num_preemptions,
    )


def changed(before: list[RunRequest], after: list[RunRequest]) -> list[ChangedRequest]:
    return changed_requests(a_run([], before), a_run([], after))


def test_the_five_that_change_most_come_first() -> None:
    seconds = [1.0, 1.5, 0.25, 1.0, 3.0, 0.5, 1.0078125]
    before = [a_request(f"req-{number}", 1.0) for number in range(7)]
    after = [a_request(f"req-{number}", e2e) for number, e2e in enumerate(seconds)]
    found = changed(before, after[::-1])
    assert [own.request_id for own in found] == ["req-4", "req-2", "req-1", "req-5", "req-6"]
    assert [(own.e2e, own.predicted_e2e) for own in found[:2]] == [(1.0, 3.0), (1.0, 0.25)]
    more = [a_request(name, 9.0) for name in "xyz"], [a_request(name, 8.0) for name in "xyz"]
    assert len(changed([*before, *more[0]], [*after, *more[1]])) == 5
    assert changed(before, before) == changed(before, []) == []
    for e2e, count in ((0.001, 1), (0.0009, 0)):
        assert len(changed([a_request("x", 0.0)], [a_request("x", e2e)])) == count


def test_a_request_without_an_end_in_both_runs_is_left_out() -> None:
    aborted = "FINISHED_ABORTED"
    before = [
        *(a_request("x", 1.0, aborted), a_request("y", 1.0), a_request("z", None)),
        *(a_request("u", 1.0), a_request("v", 1.0)),
    ]
    after = [
        *(a_request("x", 2.0), a_request("y", 2.0, aborted), a_request("z", 2.0)),
        *(a_request("u", None), a_request("v", 2.0)),
    ]
    assert [own.request_id for own in changed(before, after)] == ["v"]


def test_changes_of_waits_are_named_from_a_millisecond_on() -> None:
    before = [a_request("x", 1.0, waits={"no_blocks": 1.0, "seq_limit": 3.0, "paused": 1.0})]
    after = [
        a_request("x", 2.0, waits={"no_blocks": 1.0005, "seq_limit": 1.0, "token_budget": 0.001})
    ]
    (found,) = changed(before, after)
    assert found.waits == {"seq_limit": -2.0, "paused": -1.0, "token_budget": 0.001}


@pytest.mark.parametrize(
    ("waits", "preemptions", "causes"),
    [
        ({}, (1, 1), "(in longer or shorter steps)"),
        ({}, (1, 0), "(waits: preemptions 1 → 0)"),
        (
            {"no_blocks": 0.5, "seq_limit": -2.0, "paused": 1.0, "token_budget": 0.0},
            (0, 2),
            (
                "(waits: max_num_seqs -2.00 s, paused +1.00 s, no free blocks +500 ms, token budget"
                " +0 s, preemptions 0 → 2)"
            ),
        ),
    ],
)
def test_a_change_is_described(
    waits: dict[str, float], preemptions: tuple[int, int], causes: str
) -> None:
    described = describe(ChangedRequest("req-1", 1.0, 0.5, waits, *preemptions))
    assert described == f"req-1: E2E 1.00 s → 500 ms {causes}"
