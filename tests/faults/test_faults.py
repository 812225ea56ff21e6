"""Two hundred seeded stories of loss, damage and outage: the viewer ends up knowing everything.

A story takes a second, most of which it waits.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support import scenario
from tests.support.fault_proxy import Faults

ALWAYS = {3, 5, 6, 7, 8, 10, 11, 15, 22, 25}
"""Seeds with every kind of fault and of outage; 22 once found what no other did."""


def test_every_kind_of_fault_and_outage_is_in_the_seeds_that_always_run() -> None:
    plans = [scenario.plan(seed) for seed in ALWAYS]
    for kind in Faults.KINDS:
        assert any(getattr(plan.faults, kind) for plan in plans), kind
    assert {plan.outage for plan in plans} == {"", "cut", "freeze", "restart", "crash"}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=() if seed in ALWAYS else pytest.mark.release("many seeds"))
        for seed in range(200)
    ],
)
def test_viewer_heals(seed: int) -> None:
    with TemporaryDirectory(prefix="sq") as directory:
        outcome = scenario.run(seed, str(Path(directory)))
    assert sum(outcome.faults.values()) > 0 or scenario.plan(seed).outage, "nothing went wrong"
