"""A small run of the stress benchmark, which itself asserts that nobody starves or leaks."""

import runpy
from pathlib import Path

import pytest

STRESS = Path(__file__).parents[2] / "benchmarks" / "stress.py"


@pytest.mark.parametrize(
    ("mode", "expected"), [("recompute", {"recompute"}), ("swap", {"recompute", "swap"})]
)
def test_hundreds_of_requests_through_a_pool_too_small_for_them(
    tmp_path: Path, mode: str, expected: set[str]
) -> None:
    benchmark = runpy.run_path(str(STRESS))
    benchmark["make_model"](tmp_path)
    found = benchmark["stress"](tmp_path, 300, mode)
    assert {each for each, count in found["preemptions"].items() if count} >= expected
    assert found["ends"]["FINISHED_ABORTED"] > 0
