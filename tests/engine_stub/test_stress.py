"""Hundreds of requests in a pool that is too small: none starves, and no block is lost."""

from pathlib import Path

import pytest

from seqtop.wire.messages import PreemptionMode
from tests.release.stress import make_model, stress


@pytest.mark.parametrize(
    ("mode", "expected"), [("recompute", {"recompute"}), ("swap", {"recompute", "swap"})]
)
def test_hundreds_of_requests_through_a_pool_too_small_for_them(
    tmp_path: Path, mode: PreemptionMode, expected: set[str]
) -> None:
    make_model(tmp_path)
    outcome = stress(tmp_path, 300, mode)
    assert {mode for mode, count in outcome["preemptions"].items() if count} >= expected
    assert outcome["ends"]["FINISHED_ABORTED"] > 0
