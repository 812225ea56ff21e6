"""The requests that two runs have in common: which they are, their figures, and the verdict."""

import math
from pathlib import Path
from typing import Any

import pytest

from seqtop.diff import verdict
from seqtop.diff.comparison import RunComparison, compare
from seqtop.diff.run import RunDecisions, RunRequest
from seqtop.diff.same_requests import Figure, pair
from seqtop.export.report import contents
from seqtop.history import FileStore
from seqtop.sequence import RequestMetrics
from seqtop.state.slo import Slo
from seqtop.wire.messages import Event, Step
from tests.support.decided_runs import a_run
from tests.support.diff_runs import as_run, payloads
from tests.support.greedy_runs import NUM_REQUESTS, record_run


def request(name: str, prompt: int | None, length: int = 10) -> RunRequest:
    metrics = RequestMetrics(0.0, 0.0, None, None, None)
    return RunRequest(name, length, 0, metrics, prompt_hash=prompt)


def test_requests_are_the_same_by_id_or_else_by_prompt_in_their_order() -> None:
    a = [request("x", 1), request("y", 2), request("z", 1)]
    assert pair(a, [request("z", 9), request("new", 1)]).of_a == {0: 2}
    others = [request("p", 1), request("q", 3), request("r", 1), request("s", 2)]
    assert pair(a, others) == ("prompt and order of arrival", {0: 0, 2: 2, 3: 1})
    redacted = [request("p", None, 7), request("q", None), request("r", None)]
    assert pair(a, redacted).of_a == {1: 0, 2: 1}, "by length, as far as is known"


def test_equal_ids_of_other_prompts_are_not_the_same_requests() -> None:
    a, b = [request("x", 1), request("y", 2)], [request("x", 1), request("y", 3)]
    pairs = pair(a, b)
    assert pairs.of_a == {0: 0, 1: 1}
    assert pairs.same_prompts(a, b) == {0: 0}


def test_prompts_that_are_not_recorded_are_the_same_if_they_are_as_long() -> None:
    prompts = [(1, None), (None, 1), (None, None), (1, 1), (1, 2)]
    for length in (10, 11):
        a = [request(str(number), prompt) for number, (prompt, _) in enumerate(prompts)]
        b = [request(str(number), prompt, length) for number, (_, prompt) in enumerate(prompts)]
        same = [0, 1, 2, 3] if length == 10 else []
        assert pair(a, b).same_prompts(a, b) == {number: number for number in same}


def test_runs_with_other_ids_and_another_order_are_compared_by_their_prompts() -> None:
    usual = payloads()
    moved = payloads(arrivals=(0, 1, 3, 2, 4, 5, 6))
    comparison = compare(
        as_run(usual), as_run([payload.replace(b"req-", b"run-") for payload in moved])
    )
    assert (comparison.num_requests, comparison.aligned_by) == (7, "prompt and order of arrival")
    assert comparison.first is not None
    assert comparison.first.cause == "the requests arrived in another order"


def test_a_change_from_or_to_a_limit_is_a_limit() -> None:
    known = Figure(name="", unit="s", a=4.0, b=1.0, better=-1)
    assert (known.change, known.is_better, verdict.change_text(known)) == (-0.75, True, "-75%")
    least = Figure(name="", unit="s", a=4.0, b=1.0, better=-1, a_is_least=True)
    assert (least.is_better, verdict.change_text(least)) == (True, "≤ -75%")
    unknown = Figure(name="", unit="s", a=4.0, b=1.0, better=-1, b_is_least=True)
    assert unknown.is_better is None, "it may be higher in the end"
    both = Figure(name="", unit="s", a=4.0, b=1.0, better=-1, a_is_least=True, b_is_least=True)
    assert (both.change, verdict.change_text(both)) == (None, "")
    assert Figure(name="", unit="steps", a=4.0, b=1.0).is_better is None
    changes = [
        Figure(name="", unit="s", a=a, b=b).change
        for a, b in ((None, 1.0), (1.0, None), (0.0, 1.0), (1.0, 0.0), (0.5, 0.75), (-1.0, 1.0))
    ]
    assert changes == [None, None, None, -1.0, 0.5, None]


def a_life(number: int, first_token: float, end: str | None, **fields: Any) -> RunRequest:
    """A request of eleven tokens that arrives at 100, is scheduled a second before its first token,
    and ends ten seconds behind it."""
    finished = None if end is None else first_token + 10.0
    metrics = RequestMetrics(100.0, first_token, first_token - 1.0, first_token, None, finished)
    fields = {"num_output_tokens": 11, "num_sequences": 1} | fields
    return RunRequest(f"req-{number}", 3, 0, metrics, end=end, **fields)


def test_the_figures_of_the_requests_that_both_runs_have() -> None:
    a = a_run(
        [],
        [
            a_life(0, 150.0, "FINISHED_STOPPED"),  # only here
            a_life(1, 102.0, "FINISHED_STOPPED", seconds_waiting={"seq_limit": 1.0, "MINE": 2.0}),
            a_life(2, 104.0, "FINISHED_LENGTH_CAPPED", seconds_waiting={"seq_limit": 4.0}),
            a_life(3, 103.0, "FINISHED_ABORTED", seconds_waiting={"no_blocks": 3.0}),
        ],
    )
    b = a_run(
        [],
        [
            a_life(3, 101.0, "FINISHED_STOPPED", num_sequences=2, num_output_tokens=101),
            a_life(2, 101.0, "FINISHED_STOPPED"),
            a_life(1, 101.0, None, seconds_waiting={"no_blocks": 5.0, "ALSO": 1.0}),
        ],
    )
    a.end_time, b.end_time = 120.0, 131.0
    figures = [own for own in compare(a, b).figures if own.of_requests]
    assert [(own.name, own.unit, own.a, pytest.approx(own.b), own.better) for own in figures] == [
        ("served", "requests", 2.0, 2.0, 1),
        ("not ended", "requests", 0.0, 1.0, -1),
        ("aborted or ignored", "requests", 1.0, 0.0, -1),
        ("TTFT, p50", "s", 3.0, 1.0, -1),
        ("TTFT, p99", "s", 3.98, 1.0, -1),
        ("TPOT, p50", "s", 1.0, (1.0 + 30.0 / 11) / 2, -1),
        ("TPOT, p99", "s", 1.0, 2.71, -1),
        ("end to end, p50", "s", 13.0, 11.0, -1),
        ("end to end, p99", "s", 13.98, 30.6, -1),
        ("time in queue, p50", "s", 2.0, 0.0, -1),
        ("time in queue, p99", "s", 2.98, 0.0, -1),
        ("waiting: no free blocks", "request-s", 3.0, 5.0, -1),
        ("waiting: max_num_seqs", "request-s", 5.0, 0.0, -1),
        ("waiting: ALSO", "request-s", 0.0, 1.0, -1),
        ("waiting: MINE", "request-s", 2.0, 0.0, -1),
    ]
    limits = [own.name for own in figures if own.a_is_least or own.b_is_least]
    assert limits == ["end to end, p50", "end to end, p99"]
    assert all(own.a_is_least == own.b_is_least for own in figures)
    ended = compare(a_run([], a.requests[1:3]), a_run([], b.requests[1:2])).figures
    assert "aborted or ignored" not in {own.name for own in ended}


def test_a_time_that_no_clock_gives_is_left_out() -> None:
    """Such as that of a first token before the arrival, or of an endless one."""
    lives = [a_life(number, time, "FINISHED_STOPPED") for number, time in enumerate((90.0, 100.0))]
    lives.append(a_life(2, math.inf, "FINISHED_STOPPED"))
    run = a_run([], lives)
    values = {
        name: (figure.a, figure.b)
        for name in ("TTFT, p50", "TTFT, p99", "end to end, p99")
        if (figure := compare(run, run).figure(name)) is not None
    }
    assert values == {
        "TTFT, p50": (0.0, 0.0),
        "TTFT, p99": (0.0, 0.0),
        "end to end, p99": (9.9, 9.9),
    }


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The first 180 steps of a run with two slots, and of one with ten."""
    folder = tmp_path_factory.mktemp("parts")
    paths = folder / "two.seqtop", folder / "ten.seqtop"
    for path, slots in zip(paths, (2, 10), strict=True):
        num_steps = 0

        def beginning(event: Event) -> Event | None:
            nonlocal num_steps
            num_steps += isinstance(event, Step)
            return event if num_steps < 180 else None

        record_run(path, beginning, max_num_seqs=slots)
    return paths


@pytest.fixture(scope="module")
def comparison(parts: tuple[Path, Path]) -> RunComparison:
    return compare(decisions(parts[0]), decisions(parts[1]))


def decisions(path: Path) -> RunDecisions:
    with FileStore(path) as recording:
        return RunDecisions(recording)


def test_requests_that_had_not_ended_count_with_their_time_so_far(
    comparison: RunComparison,
) -> None:
    served, open_ = comparison.figure("served"), comparison.figure("not ended")
    assert served is not None
    assert open_ is not None
    assert (served.a or 0) + (open_.a or 0) == comparison.num_requests == NUM_REQUESTS
    assert (served.a or 0) < 10 < (served.b or 0)
    ttft = comparison.figure("TTFT, p50")
    assert ttft is not None
    assert ttft.a_is_least
    assert not ttft.b_is_least
    assert (ttft.a or 0) > (ttft.b or 0), "the served ones alone were quick"
    assert ttft.is_better is True


def test_the_verdict_says_who_serves_more_and_why(comparison: RunComparison) -> None:
    sentence = verdict.sentence(comparison)
    assert sentence.startswith("B serves 27 of the 40 requests that both have, A 7; TTFT p50 ≤ -")
    assert "; because max_num_seqs 2 → 10; first in step 1, admission: " in sentence
    assert "all requests together waited for max_num_seqs " in sentence


def test_the_verdict_on_equal_runs(parts: tuple[Path, Path]) -> None:
    run = decisions(parts[1])
    sentence = verdict.sentence(compare(run, run))
    assert sentence.startswith("both serve 27 of the 40 requests that both have; ")
    assert sentence.endswith("; all decisions and settings are the same")
    apart = compare(as_run(payloads()), run)
    assert apart.num_requests == 7 - apart.num_other_prompts
    assert verdict.remarks(apart)


def test_a_report_counts_as_a_comparison_does(
    parts: tuple[Path, Path], comparison: RunComparison
) -> None:
    (counted,) = (own for own in comparison.figures if own.name == "requests served")
    for path, number in zip(parts, (counted.a, counted.b), strict=True):
        with FileStore(path) as recording:
            read = contents.read(recording, Slo())
        assert sum(map(contents.is_served, read.lifecycles)) == number
        assert read.num_without("e2e") == NUM_REQUESTS - (number or 0)
