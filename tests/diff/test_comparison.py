"""Comparing runs: equal ones, and twenty that differ in one thing, which has to be named."""

from typing import Any

import pytest

from seqtop.diff.comparison import Comparison, compare
from seqtop.diff.run import Run
from tests.support import diff_runs
from tests.support.diff_runs import as_run, payloads, prefer_victim, rank_by


@pytest.fixture(scope="module")
def usual() -> list[bytes]:
    return payloads()


@pytest.fixture(scope="module")
def base(usual: list[bytes]) -> Run:
    return as_run(usual)


CROWDED: dict[str, Any] = {"max_num_seqs": 7, "num_gpu_blocks": 30, "max_num_batched_tokens": 128}
"""Settings with which several requests run that could be preempted."""


@pytest.fixture(scope="module")
def crowded() -> Run:
    return as_run(payloads(**CROWDED))


def changed(base: Run, **changes: Any) -> Comparison:
    return compare(base, as_run(payloads(**changes)))


def test_equal_runs(base: Run) -> None:
    found = changed(base)
    assert (found.first, found.settings, found.differs) == (None, [], False)
    assert found.num_equal_steps == len(base.steps) > 50
    assert all(figure.a == figure.b for figure in found.figures)
    assert any(step.preempted for step in base.steps), "nothing to compare"


MORE = pytest.mark.release("more of the same kind")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_batched_tokens", 16),
        *(pytest.param("max_num_batched_tokens", value, marks=MORE) for value in (24, 48, 64)),
        ("block_size", 12),
        *(pytest.param("block_size", value, marks=MORE) for value in (10, 24, 32)),
        ("num_gpu_blocks", 40),
        *(pytest.param("num_gpu_blocks", value, marks=MORE) for value in (16, 18, 24)),
    ],
)
def test_changed_setting_is_named(base: Run, name: str, value: int) -> None:
    found = changed(base, **{name: value})
    assert [setting.name for setting in found.settings] == [name]
    assert found.settings[0].b == value
    assert found.first is not None
    assert f"{name} " in found.first.cause


@pytest.mark.parametrize(
    "changes",
    [
        {"preemption_victim": "largest"},
        pytest.param({"patch": prefer_victim(lambda behind: behind[0])}, marks=MORE),
        {"patch": prefer_victim(lambda behind: max(behind, key=lambda each: len(each.prompt)))},
        pytest.param(
            {"patch": prefer_victim(lambda behind: min(behind, key=lambda each: len(each.prompt)))},
            marks=MORE,
        ),
    ],
    ids=["largest", "first", "longest prompt", "shortest prompt"],
)
def test_changed_preemption_policy_is_named(crowded: Run, changes: dict[str, Any]) -> None:
    found = changed(crowded, **CROWDED, **changes)
    assert found.settings == []
    assert found.first is not None
    assert found.first.kind == "preemption"
    assert found.first.cause == "the policy that chooses the request to preempt differs"


@pytest.mark.parametrize(
    ("changes", "kind", "cause"),
    [
        (
            {"patch": rank_by(lambda group: len(group.prompt_token_ids))},
            "admission order",
            "the order of the waiting queue differs",
        ),
        pytest.param(
            {"patch": rank_by(lambda group: -len(group.prompt_token_ids))},
            "admission order",
            "the order of the waiting queue differs",
            marks=MORE,
        ),
        (
            {"arrivals": (0, 1, 3, 2, 4, 5, 6)},
            "arrivals",
            "the requests arrived in another order",
        ),
        (
            {"priorities": {6: -1}},
            "arrivals",
            "the requests are not the same: their priority differs",
        ),
    ],
    ids=["shortest first", "longest first", "other arrivals", "priority"],
)
def test_changed_order_is_named(base: Run, changes: dict[str, Any], kind: str, cause: str) -> None:
    found = changed(base, **changes)
    assert found.settings == []
    assert found.first is not None
    assert (found.first.kind, found.first.cause) == (kind, cause)


def test_runs_with_other_ids_are_aligned_by_arrival(base: Run, usual: list[bytes]) -> None:
    other = as_run([each.replace(b"req-", b"run-") for each in usual])
    found = compare(base, other)
    assert (found.first, found.aligned_by) == (None, "order of arrival")


def test_run_that_is_cut_short(base: Run, usual: list[bytes]) -> None:
    found = compare(base, as_run(usual[: len(usual) // 2]))
    assert found.first is not None
    assert (found.first.kind, found.first.step_b) == ("length", -1)
    assert len(diff_runs.PROMPTS) == len(base.requests)
