"""Accounts that are read together with explanations: they are those of a pass over all requests."""

import pytest

from seqtop.explain.explanation import explain
from seqtop.ledger.account import Charge
from seqtop.ledger.charged_explanation import ChargedExplanation
from seqtop.ledger.ledger import charge_all
from seqtop.state import RequestState
from seqtop.state.wait_causes import IN_PROGRESS
from seqtop.wire.messages import RequestArrived
from tests.explain.test_explanation import MILLISECOND, Recorded
from tests.support.random_engine import RandomEngine
from tests.support.random_scheduler import random_schedule
from tests.support.simulated_scheduler import SimulatedScheduler


def charges_of(viewer: Recorded, request: RequestState, position: int) -> list[Charge]:
    explanation = ChargedExplanation(viewer.history, request, position)
    assert explanation.charges() == []
    while explanation.advance(1.0):
        pass
    assert not explanation.error
    parts = explain(viewer.history, request, position).parts()
    charges = explanation.charges()
    assert sum(item.seconds for item in charges) == pytest.approx(
        sum(part.seconds for part in parts), abs=MILLISECOND
    )
    return charges


@pytest.mark.parametrize("seed", range(2))
def test_the_charges_of_an_explanation_are_those_of_the_account(seed: int) -> None:
    """Also where an engine has started again, and gives its requests the same names."""
    viewer = Recorded()
    ends: list[int] = []
    for start in (1_000.0, 1_100.0):
        events = random_schedule(seed + int(start), 40, start=start)
        if viewer.num_messages:
            ends.append(viewer.history.last)
            viewer.restart(events[0])
        for event in events[bool(ends) :]:
            viewer.publish(event)
    ends.append(viewer.history.last)
    accounts = {
        (account.request_id, account.chain.arrival_time): account.charges()
        for account in charge_all(viewer.history)
    }
    names = [name for name, _ in accounts]
    assert len(names) > len({*names})
    num_ended = 0
    for end in ends:
        for request in viewer.history.at(end).requests.values():
            charges = charges_of(viewer, request, end)
            if request.finish_reason is not None:
                num_ended += 1
                assert charges == accounts[request.request_id, request.metrics.arrival_time]
    assert num_ended > 5


def test_requests_that_arrive_at_once_are_told_apart() -> None:
    run, viewer = SimulatedScheduler(), Recorded()
    for name, num_prompt, num_output in (("a", 300, 4), ("b", 20, 8), ("c", 400, 12)):
        run.add(name, num_prompt, num_output)
    run.run_out()
    for event in run.events:
        viewer.publish(event)
    accounts = {account.request_id: account.charges() for account in charge_all(viewer.history)}
    assert len({sum(item.seconds for item in charges) for charges in accounts.values()}) == 3
    for name, request in viewer.state.requests.items():
        assert charges_of(viewer, request, viewer.history.last) == accounts[name]


def test_the_time_since_the_last_step_is_charged_to_nobody() -> None:
    viewer, arrivals = Recorded(), list[int]()
    for event in RandomEngine(3, 30):
        viewer.publish(event)
        if isinstance(event, RequestArrived):
            arrivals.append(viewer.history.last)
    history = viewer.history
    num_in_progress = 0
    for position in [*arrivals[-4:], history.last]:
        state = history.at(position)
        for request in state.requests.values():
            charges = charges_of(viewer, request, position)
            end = request.metrics.finished_time
            total = (state.time if end is None else end) - request.metrics.arrival_time
            assert sum(item.seconds for item in charges) == pytest.approx(total, abs=MILLISECOND)
            open_charges = [item for item in charges if item.cause == IN_PROGRESS]
            num_in_progress += len(open_charges)
            if open_charges:
                assert request.finish_reason is None
                assert open_charges == charges[-1:]
                assert open_charges[0].charged_to == "unexplained"
    assert num_in_progress > 0
