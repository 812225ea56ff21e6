"""The requests that two runs have in common: which they are, their figures, and the verdict."""

from pathlib import Path

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
