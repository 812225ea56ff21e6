"""Accounts of all requests of random runs: they add up, and both directions agree."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from seqtop.explain.explanation import explain, find_request
from seqtop.history import FileStore
from seqtop.history.step_time import StepTime
from seqtop.ledger.account import NO_ESTIMATE, STEP_TIME, Account
from seqtop.ledger.ledger import Run, charge, charge_all, harm_done
from seqtop.ledger.totals import HarmTotal, harm_totals
from seqtop.sequence import latency
from tests.explain.test_explanation import MILLISECOND, Recorded
from tests.support.culprits import CulpritRun, Kind
from tests.support.latency_run import latency_run
from tests.support.random_runs import RandomRun


def assert_totals_are_the_sums_of_the_accounts(run: Run, accounts: Iterable[Account]) -> None:
    summed: dict[str, HarmTotal] = {}
    for account in accounts:
        own = summed.setdefault(account.request_id, HarmTotal(account.request_id))
        by_other: defaultdict[str, float] = defaultdict(float)
        for item in account.charges(run.step_time):
            if item.request_id is not None:
                other = summed.setdefault(item.request_id, HarmTotal(item.request_id))
                other.estimated += item.seconds * (item.evidence == "estimated")
                by_other[item.request_id] += item.seconds
        for name, seconds in by_other.items():
            summed[name].seconds += seconds
            summed[name].num_delayed = (summed[name].num_delayed or 0) + 1
        own.harmed_by_others += sum(by_other.values())
    totals = harm_totals(run, max_counted=len(summed))
    uncounted = harm_totals(run, max_counted=len(summed) - 1)
    assert [total.num_delayed for total in uncounted] == [None] * len(summed)
    assert [replace(total, num_delayed=0) for total in uncounted] == [
        replace(total, num_delayed=0) for total in totals
    ]
    assert totals == sorted(totals, key=lambda total: -total.seconds)
    assert {total.request_id for total in totals} == summed.keys()
    for total in totals:
        expected = pytest.approx(asdict(summed.pop(total.request_id)), abs=1e-9)
        assert asdict(total) == expected


@pytest.mark.parametrize("kind", ["long_prompt", "burst", "priority"])
def test_totals_of_a_long_queue_are_the_sums_of_the_accounts(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "run.seqtop"
    CulpritRun(kind, 1).record(path)
    with FileStore(path) as recording:
        run = Run(recording)
        assert_totals_are_the_sums_of_the_accounts(run, charge_all(run))


@pytest.mark.parametrize(
    "seed",
    [0, 1, *(pytest.param(n, marks=pytest.mark.release("many seeds")) for n in range(2, 120))],
)
def test_charges_add_up_to_the_latency_and_agree_in_both_directions(seed: int) -> None:
    run, viewer = RandomRun(seed), Recorded()
    viewer.publish(run.info())
    for _ in run.steps(viewer):
        pass
    known = Run(viewer.history)
    accounts = {account.request_id: account for account in charge_all(known)}
    assert accounts.keys() == viewer.state.requests.keys()
    for name, account in accounts.items():
        e2e = latency.e2e_latency(viewer.state.requests[name].metrics)
        for step_time in (known.step_time, None):
            charges = account.charges(step_time)
            assert sum(item.seconds for item in charges) == pytest.approx(e2e, abs=MILLISECOND)
            negative = [item.cause for item in charges if item.seconds < 0]
            assert set(negative) <= {STEP_TIME}
            if step_time is None:
                assert not any(item.evidence == "estimated" for item in charges)
        request = viewer.state.requests[name]
        alone = charge(known, request).charges(known.step_time)
        assert {(item.charged_to, item.request_id, item.cause) for item in alone} == {
            (item.charged_to, item.request_id, item.cause)
            for item in account.charges(known.step_time)
        }
        harms = {harm.request_id: harm.seconds for harm in harm_done(known, request)}
        expected = {
            victim: sum(
                item.seconds for item in other.charges(known.step_time) if item.request_id == name
            )
            for victim, other in accounts.items()
        }
        assert harms == pytest.approx({k: v for k, v in expected.items() if v}, abs=1e-9)
    assert_totals_are_the_sums_of_the_accounts(known, accounts.values())


def test_a_wait_is_charged_to_the_holder_and_a_recomputation_to_whom_it_made_room_for() -> None:
    """As written in the run: `short` waits for blocks of `long`, and is preempted for it."""
    _, history = latency_run()
    known = Run(history)
    assert known.step_time is None
    assert "6 steps" in known.no_step_time
    located = find_request(history, "short")
    assert located is not None
    parts = {part.kind: part.seconds for part in explain(history, *located).parts()}
    seconds = {
        (item.charged_to, item.request_id, item.cause): item.seconds
        for item in charge(known, located[0]).charges(None)
    }
    blocked = seconds["request", "long", "no_blocks"]
    assert blocked == pytest.approx(0.1)
    assert parts["preempted"] == pytest.approx(0.05)
    # The other steps were shared, and without a model nobody is charged for them.
    assert seconds["unexplained", None, NO_ESTIMATE] == pytest.approx(0.1)
    assert seconds["itself", None, "decode"] == pytest.approx(0.05)
    # With a model, the prefill after the preemption is charged to `long`, and so are its tokens.
    model = StepTime(per_step=0.01, per_prefill_token=0.001, per_decode_token=0.002)
    estimated = {
        (item.request_id, item.cause): item.seconds
        for item in charge(known, located[0]).charges(model)
        if item.evidence == "estimated"
    }
    assert estimated == pytest.approx(
        {
            ("long", "shared_step"): 2 * 0.002,
            ("long", "recompute"): 0.01 + 41 * 0.001,
            (None, "prefill"): 0.01 + 40 * 0.001,
        }
    )
