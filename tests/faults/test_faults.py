"""Two hundred seeded stories of loss, damage and outage: the viewer ends up knowing everything."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support import scenario


@pytest.mark.parametrize("seed", range(200))
def test_viewer_heals(seed: int) -> None:
    with TemporaryDirectory(prefix="sq") as directory:
        outcome = scenario.run(seed, str(Path(directory)))
    assert sum(outcome.faults.values()) > 0 or scenario.plan(seed).outage, "nothing went wrong"
