"""Comparing runs: equal ones, and twenty that differ in one thing, which has to be named."""

import copy
import re
from collections import Counter
from typing import Any

import pytest

from seqtop.diff import report
from seqtop.diff.alignment import Ignored
from seqtop.diff.comparison import RunComparison, compare
from seqtop.diff.run import RunDecisions
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from tests.support import diff_runs
from tests.support.diff_runs import as_run, payloads, prefer_victim, rank_by
from tests.support.events import arrival, delta, engine_info, full, step


@pytest.fixture(scope="module")
def usual() -> list[bytes]:
    return payloads()


@pytest.fixture(scope="module")
def base(usual: list[bytes]) -> RunDecisions:
    return as_run(usual)


CROWDED: dict[str, Any] = {"max_num_seqs": 7, "num_gpu_blocks": 30, "max_num_batched_tokens": 128}
"""Settings with which several requests run that could be preempted."""


@pytest.fixture(scope="module")
def crowded() -> RunDecisions:
    return as_run(payloads(**CROWDED))


def changed(base: RunDecisions, **changes: Any) -> RunComparison:
    return compare(base, as_run(payloads(**changes)))


def test_equal_runs(base: RunDecisions) -> None:
    comparison = changed(base)
    assert (comparison.first, comparison.settings, comparison.is_different) == (None, [], False)
    assert comparison.num_equal_steps == len(base.steps) > 50
    assert all(figure.a == figure.b for figure in comparison.figures)
    assert any(step.preempted for step in base.steps), "nothing to compare"


def test_the_gaps_of_both_runs_are_counted(base: RunDecisions) -> None:
    one, other = copy.copy(base), copy.copy(base)
    one.num_gaps, other.num_gaps = 1, 2
    assert "have 3 gaps, in which" in report.as_text(compare(one, other), "a", "b")


def test_a_chunk_of_one_prompt_token_is_no_decode() -> None:
    events = (
        engine_info(),
        arrival(1),
        step(0, full("req-1", 1, chunk=1)),
        step(1, delta("req-1", 1, computed=1)),
    )
    steps = as_run([codec.encode(event) for event in events]).steps
    assert [(step.chunks, step.decodes) for step in steps] == [(((0, 1),), ()), ((), (0,))]


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
def test_changed_setting_is_named(base: RunDecisions, name: str, value: int) -> None:
    comparison = changed(base, **{name: value})
    assert [setting.name for setting in comparison.settings] == [name]
    assert comparison.settings[0].b == value
    assert comparison.first is not None
    assert f"{name} " in comparison.first.cause


@pytest.mark.parametrize(
    "changes",
    [
        {"preemption_victim": "largest"},
        pytest.param({"patch": prefer_victim(lambda behind: behind[0])}, marks=MORE),
        {"patch": prefer_victim(lambda behind: max(behind, key=lambda group: len(group.prompt)))},
        pytest.param(
            {
                "patch": prefer_victim(
                    lambda behind: min(behind, key=lambda group: len(group.prompt))
                )
            },
            marks=MORE,
        ),
    ],
    ids=["largest", "first", "longest prompt", "shortest prompt"],
)
def test_changed_preemption_policy_is_named(crowded: RunDecisions, changes: dict[str, Any]) -> None:
    comparison = changed(crowded, **CROWDED, **changes)
    named = [setting.name for setting in comparison.settings]
    assert named == [name for name in changes if name != "patch"]
    assert comparison.first is not None
    assert comparison.first.kind == "preemption"
    policy = "the policy that chooses the request to preempt differs"
    assert comparison.first.cause.endswith(policy)
    assert ("preemption_victim last → largest" in comparison.first.cause) == bool(named)


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
def test_changed_order_is_named(
    base: RunDecisions, changes: dict[str, Any], kind: str, cause: str
) -> None:
    comparison = changed(base, **changes)
    assert comparison.settings == []
    assert comparison.first is not None
    assert (comparison.first.kind, comparison.first.cause) == (kind, cause)


@pytest.mark.parametrize(("name", "value"), [("num_scheduler_steps", 4), ("speculative", "ngram")])
def test_requests_that_get_more_tokens_in_a_step(
    base: RunDecisions, name: str, value: object
) -> None:
    comparison = changed(base, **{name: value})
    assert comparison.first is not None
    assert comparison.first.cause.startswith(f"the settings differ: {name} ")
    (budget,) = (own for own in comparison.differences if own.kind == "token budget")
    assert re.match(r"computed 1 token of req-\d, 4 in total", budget.a)
    more = re.match(r"computed ([2-5]) tokens of req-\d, (\d+) in total", budget.b)
    assert more
    assert int(more[2]) > 4


def test_the_comparison_goes_on_behind_a_difference(base: RunDecisions) -> None:
    """One request less: the runs are equal again until it is admitted."""
    comparison = changed(base, arrivals=(0, 1, 2, 3, 4, 5))
    arrivals, admission, batch = comparison.differences
    assert (arrivals.kind, arrivals.step_a, arrivals.again_a) == ("arrivals", 0, 1)
    assert (admission.kind, admission.again_a) == ("admission", -1)
    assert admission.cause == "the other run has no request req-6"
    assert (batch.kind, batch.request_ids) == ("batch", ["req-6"])
    assert comparison.num_equal_steps == 0
    assert comparison.num_matching_steps == admission.step_a - 1 > 50


def test_steps_that_only_one_run_has(base: RunDecisions) -> None:
    other = as_run(payloads())
    del other.steps[40:50]
    (difference,) = compare(base, other).differences
    assert (difference.step_a, difference.step_b) == (40, 50)
    assert (difference.again_a, difference.again_b) == (50, 50)


def test_arrivals_and_tokens_can_be_ignored(base: RunDecisions) -> None:
    other = as_run(payloads())
    other.steps[30] = other.steps[30]._replace(tokens=1)
    other.steps[8] = other.steps[8]._replace(arrived=(1,))

    def kinds(*ignored: Ignored) -> list[str]:
        return [difference.kind for difference in compare(base, other, ignored).differences]

    assert kinds() == ["arrivals", "tokens"]
    assert kinds("arrivals") == ["tokens"]
    assert kinds("tokens") == ["arrivals"]
    assert kinds("arrivals", "tokens") == []


def test_moves_of_blocks_and_lookahead_slots_are_compared(base: RunDecisions) -> None:
    other = as_run(payloads())
    other.steps[8] = other.steps[8]._replace(lookahead=(3, 4))
    other.steps[30] = other.steps[30]._replace(moves=(1, 0, 2))
    lookahead, moves = compare(base, other).differences
    assert (lookahead.kind, lookahead.step_a, moves.kind, moves.step_a) == (
        *("lookahead", 8),
        *("block moves", 30),
    )
    assert lookahead.a == "had 0 lookahead slots, for 1 iteration"
    assert lookahead.b == "had 3 lookahead slots, for 4 iterations"
    assert moves.a == "swapped 0 blocks in and 0 blocks out, copied 0 blocks"
    assert moves.b == "swapped 1 block in and 0 blocks out, copied 2 blocks"


def test_settings_of_a_scheduler_are_compared_by_its_names(base: RunDecisions) -> None:
    a, b = (
        engine_info(queue_order=order, scheduler_settings={"policy": policy, "watermark": 0.0})
        for order, policy in (("fcfs", "fcfs"), ("priority", "priority"))
    )
    b.scheduler_settings["async_scheduling"] = True
    one, other = copy.copy(base), copy.copy(base)
    one.info, other.info = a, b
    settings = compare(one, other).settings
    assert [(setting.name, setting.a, setting.b) for setting in settings] == [
        ("policy", "fcfs", "priority"),
        ("async_scheduling", None, True),
    ]


def test_requests_from_before_a_recording_have_their_own_table(usual: list[bytes]) -> None:
    """The second half of a run has fewer preemptions, but all of the requests' times."""
    history, state = MemoryStore(), EngineState()
    half = len(usual) // 2
    for number, payload in enumerate(usual):
        event = parsing.event(payload)
        state.apply(event)
        if number == half:
            history.restore("one", number, state)
        elif number > half:
            history.append(number, payload, event, state)
    whole, late = as_run(usual), RunDecisions(history)
    figures = {figure.name: figure for figure in compare(whole, late).figures}
    for name in ("steps", "preemptions", "output", "lost to preemption"):
        assert 0 <= (figures[name].b or 0) < (figures[name].a or 0), name
        assert not figures[name].of_requests
    ttft = figures["TTFT, p99"]
    assert ttft.of_requests
    assert ttft.a == ttft.b
    assert all(figure.unit for figure in figures.values())


def test_runs_with_other_ids_are_aligned_by_their_prompts(
    base: RunDecisions, usual: list[bytes]
) -> None:
    other = as_run([payload.replace(b"req-", b"run-") for payload in usual])
    comparison = compare(base, other)
    assert (comparison.first, comparison.aligned_by) == (None, "prompt and order of arrival")


def test_run_that_is_cut_short(base: RunDecisions, usual: list[bytes]) -> None:
    comparison = compare(base, as_run(usual[: len(usual) // 2]))
    assert comparison.first is not None
    assert (comparison.first.kind, comparison.first.step_b) == ("length", -1)
    assert len(diff_runs.PROMPTS) == len(base.requests)


@pytest.mark.parametrize("max_finished", [1, 3, 1_000])
def test_waits_are_those_of_the_state(usual: list[bytes], max_finished: int) -> None:
    """Also of requests that the last state no longer has."""
    history, state = MemoryStore(), EngineState(max_finished=max_finished)
    whole = EngineState()
    for number, payload in enumerate(usual):
        for reached in (state, whole):
            reached.apply(parsing.event(payload))
        history.append(number, payload, parsing.event(payload), state)
    waits = [request.wait for request in whole.requests.values()]
    seconds: Counter[str] = Counter()
    for request in RunDecisions(history).requests:
        seconds.update(request.seconds_waiting)
    assert sum(seconds.values()) == pytest.approx(sum(wait.total for wait in waits))
    for cause in ("no_blocks", "token_budget", "seq_limit"):
        known = sum(wait.by_cause.get(cause, 0.0) for wait in waits)
        assert seconds.get(cause, 0.0) == pytest.approx(known)
    assert len(seconds) > 1


def test_waits_are_figures(base: RunDecisions, crowded: RunDecisions) -> None:
    names = [figure.name for figure in compare(base, crowded).figures]
    assert "waiting: max_num_seqs" in names
