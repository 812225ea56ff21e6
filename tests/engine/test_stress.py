"""A small run of the stress benchmark, which itself asserts that nobody starves or leaks."""

import runpy
from pathlib import Path

STRESS = Path(__file__).parents[2] / "benchmarks" / "stress.py"


def test_hundreds_of_requests_through_a_pool_too_small_for_them(tmp_path: Path) -> None:
    benchmark = runpy.run_path(str(STRESS))
    benchmark["make_model"](tmp_path)
    found = benchmark["stress"](tmp_path, 300)
    assert sum(found["preemptions"].values()) > 0
    assert found["ends"]["FINISHED_ABORTED"] > 0
