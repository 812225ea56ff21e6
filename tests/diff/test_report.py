"""The result of a comparison in words: every line of the text, the JSON, and the verdict."""

import json
from typing import Any

import msgspec
import pytest

from seqtop.diff import report, verdict
from seqtop.diff.comparison import Difference, DifferenceKind, RunComparison, Setting
from seqtop.diff.same_requests import Figure
from seqtop.text import format as fmt


def figure(name: str, unit: str, a: float | None, b: float | None, **fields: Any) -> Figure:
    return Figure(name=name, unit=unit, a=a, b=b, **fields)


def of_requests(name: str, a: float | None, b: float | None, **fields: Any) -> Figure:
    unit = "requests" if name in {"served", "not ended"} else "s"
    return figure(name, unit, a, b, of_requests=True, **fields)


def waiting(cause: str, a: float, b: float) -> Figure:
    return figure(f"waiting: {cause}", "request-s", a, b, of_requests=True)


def difference(
    kind: DifferenceKind, step_a: int, step_b: int, cause: str = "of a cause", **fields: Any
) -> Difference:
    return Difference(kind, f"{kind} of A", f"{kind} of B", step_a, step_b, cause, **fields)


def compared(*figures: Figure, **fields: Any) -> RunComparison:
    values: dict[str, Any] = {
        "settings": [],
        "differences": [],
        "num_equal_steps": 1_234,
        "num_matching_steps": 1_234,
        "aligned_by": "request id",
        "num_requests": 4,
    }
    return RunComparison(figures=[*figures], **(values | fields))


EVERYTHING = compared(
    figure("steps", "steps", 1_234.0, 1_234.0),
    figure("output", "tokens", 0.0, 12.0),
    figure("lost", "tokens", None, 3.0),
    figure("hits", "tokens", 3.0, None),
    figure("other", "tokens", None, None),
    figure("throughput", "tokens/s", 10.0, 9.52),
    figure("hit share", "share", 0.25, 0.5),
    of_requests("served", 1.0, 3.0),
    of_requests("TTFT, p50", 2.0, 1.0, a_is_least=True),
    of_requests("TTFT, p99", 2.0, 4.0, b_is_least=True),
    of_requests("end to end, p99", 2.0, 4.0, a_is_least=True, b_is_least=True),
    waiting("no free blocks", 1.5, 0.0),
    settings=[Setting("max_num_seqs", 4, 16), Setting("policy", None, "fcfs")],
    differences=[
        difference("preemption", 0, 1_000, again_a=0, again_b=2_000),
        difference("tokens", 7, 1_008),
        difference("length", 9_999, -1),
    ],
    num_matching_steps=5_678,
    num_only_a=1,
    num_other_prompts=2,
    num_gaps=1_000,
)
TEXT = """\
B serves 3 of the 4 requests that both have, A 1; TTFT p99 ≥ +100% (2.00 s → ≥ 4.00 s); \
because max_num_seqs 4 → 16, policy None → fcfs; first in step 0, preemption: of a cause; \
all requests together waited for no free blocks 1.50 s → 0 s.

A: a.seqtop
B: b.seqtop
setting max_num_seqs: A 4, B 16
setting policy: A None, B fcfs
the recordings have 1,000 gaps, in which requests may be lost
1,234 steps have the same decisions (requests aligned by request id); \
the first difference is in preemption:
  A, step 0: preemption of A
  B, step 1,000: preemption of B
  because of a cause
  equal again from step 0 of A and step 2,000 of B on
the first difference in tokens:
  A, step 7: tokens of A
  B, step 1,008: tokens of B
  because of a cause
the first difference in length:
  A, step 9,999: length of A
  B, step none: length of B
  because of a cause
in all, 5,678 steps have the same decisions

in the recording  unit            A        B    B - A  change
steps             steps       1,234    1,234        0      0%
output            tokens          0       12       12
lost              tokens    unknown        3  unknown
hits              tokens          3  unknown  unknown
other             tokens    unknown  unknown  unknown
throughput        tokens/s   10.000    9.520   -0.480   -4.8%
hit share         share         25%      50%      25%   +100%

the 4 requests of both   unit             A        B   B - A   change
served                   requests         1        3       2    +200%
TTFT, p50                s          ≥ 2.000    1.000           ≤ -50%
TTFT, p99                s            2.000  ≥ 4.000          ≥ +100%
end to end, p99          s          ≥ 2.000  ≥ 4.000
waiting: no free blocks  request-s    1.500    0.000  -1.500    -100%
≥: at least, since some of the requests had not ended
1 request only in A
2 requests in both with other prompts"""


def test_every_line_of_the_text() -> None:
    assert report.as_text(EVERYTHING, "a.seqtop", "b.seqtop") == TEXT


EQUAL = compared(
    figure("steps", "steps", 2.0, 2.0), of_requests("served", 1.0, 1.0), num_requests=1
)
EQUAL_TEXT = """\
both serve all of the 1 request that both have; all decisions and settings are the same.

A: a
B: b
all 1,234 steps have the same decisions

in the recording  unit   A  B  B - A  change
steps             steps  2  2      0      0%

the 1 request of both  unit      A  B  B - A  change
served                 requests  1  1      0      0%"""


def test_every_line_of_the_text_on_equal_runs() -> None:
    assert report.as_text(EQUAL, "a", "b") == EQUAL_TEXT


@pytest.mark.parametrize("comparison", [EVERYTHING, EQUAL], ids=["everything", "equal"])
def test_the_json_has_the_comparison_and_the_verdict(comparison: RunComparison) -> None:
    document = json.loads(report.as_json(comparison, "a", "b"))
    assert document.pop("differs") == comparison.is_different == (comparison is EVERYTHING)
    assert document.pop("verdict") == verdict.sentence(comparison)
    assert (document.pop("a"), document.pop("b")) == ("a", "b")
    assert document == msgspec.to_builtins(comparison)


def test_a_figure_of_the_requests_is_found_by_its_name() -> None:
    served, other = of_requests("served", 1.0, 2.0), of_requests("not ended", 3.0, 4.0)
    comparison = compared(figure("steps", "steps", 5.0, 6.0), other, served)
    assert comparison.figure("served") is served
    assert comparison.figure("steps") is None


def test_values_and_changes_as_text() -> None:
    texts = [
        verdict.value_text(value, unit, is_least=is_least)
        for value, unit, is_least in (
            (None, "s", True),
            (0.5, "share", False),
            (1_500.0, "tokens", False),
            (1.5, "s", True),
            (1.5, "request-s", False),
        )
    ]
    assert texts == [fmt.UNKNOWN, "50%", "1,500", "≥ 1.50 s", "1.50 s"]
    changes = [
        verdict.change_text(figure("", "s", a, b))
        for a, b in ((None, 1.0), (1.0, None), (0.0, 1.0), (1.0, 0.0), (2.0, 2.0), (2.0, 2.08))
    ]
    assert changes == ["", "", "", "-100%", "0%", "+4.0%"]


SLOWER = of_requests("TTFT, p99", 1.0, 2.0)
SETTINGS = [Setting(name, 1, 2) for name in "vwxyz"]
NO_WAIT = "all decisions and settings are the same"


@pytest.mark.parametrize(
    ("comparison", "parts"),
    [
        (compared(num_requests=0), ["the runs have no request in common", NO_WAIT]),
        (compared(), ["the runs have no request in common", NO_WAIT]),
        (
            compared(of_requests("served", 0.0, 0.0)),
            ["both serve 0 of the 4 requests that both have", NO_WAIT],
        ),
        (
            compared(of_requests("served", 3.0, 3.0), of_requests("TTFT, p99", 1.0, 1.0)),
            [
                "both serve 3 of the 4 requests that both have",
                "latencies differ by less than 5%",
                NO_WAIT,
            ],
        ),
        (
            compared(of_requests("served", 2.0, 0.0), of_requests("TTFT, p50", 1.0, 1.04)),
            [
                "A serves 2 of the 4 requests that both have, B 0",
                "latencies differ by less than 5%",
                NO_WAIT,
            ],
        ),
    ],
)
def test_the_verdict_on_runs_without_difference(
    comparison: RunComparison, parts: list[str]
) -> None:
    assert verdict.sentence(comparison) == "; ".join(parts)


@pytest.mark.parametrize(
    ("figures", "parts"),
    [
        ([], []),
        ([of_requests("TTFT, p99", None, 1.0)], []),
        ([of_requests("TTFT, p99", 0.0, 1.0), SLOWER], []),
        (
            [of_requests("TTFT, p50", 1.0, 4.0), SLOWER, of_requests("TPOT, p50", 0.01, 0.005)],
            ["TTFT p99 +100% (1.00 s → 2.00 s)", "TPOT p50 -50% (10.0 ms → 5.00 ms)"],
        ),
        (
            [of_requests("TTFT, p99", None, 4.0), of_requests("TTFT, p50", 1.0, 2.0)],
            ["TTFT p50 +100% (1.00 s → 2.00 s)"],
        ),
        (
            [of_requests("TTFT, p99", 1.0, 1.0), of_requests("TPOT, p99", 1.0, 0.9)],
            ["TPOT p99 -10% (1.00 s → 900 ms)"],
        ),
        (
            [SLOWER, of_requests("TPOT, p99", 1.0, 1.04), of_requests("end to end, p99", 1.0, 3.0)],
            ["TTFT p99 +100% (1.00 s → 2.00 s)", "end to end p99 +200% (1.00 s → 3.00 s)"],
        ),
        (
            [
                of_requests(f"{name}, p99", 1.0, 2.0)
                for name in ("end to end", "time in queue", "TPOT", "TTFT")
            ],
            ["TTFT p99 +100% (1.00 s → 2.00 s)", "TPOT p99 +100% (1.00 s → 2.00 s)"],
        ),
    ],
)
def test_the_verdict_names_two_latencies(figures: list[Figure], parts: list[str]) -> None:
    served = of_requests("served", 4.0, 4.0)
    sentence = verdict.sentence(compared(served, *figures, settings=SETTINGS[:1]))
    whole = ["both serve all of the 4 requests that both have", *parts, "because v 1 → 2"]
    assert sentence == "; ".join(whole)


ARRIVALS = difference("arrivals", 3, 4, "of arrivals")
ADMISSION = difference("admission", 5, 6, "the settings differ: v 1 → 2; of a limit")


@pytest.mark.parametrize(
    ("reason", "comparison"),
    [
        ("v 1 → 2, w 1 → 2, x 1 → 2", compared(settings=SETTINGS[:3])),
        ("v 1 → 2, w 1 → 2, x 1 → 2 and 1 more", compared(settings=SETTINGS[:4])),
        ("v 1 → 2, w 1 → 2, x 1 → 2 and 2 more", compared(settings=SETTINGS)),
        ("first in step 3, arrivals: of arrivals", compared(differences=[ARRIVALS])),
        (
            "first in step 5, admission: the settings differ: v 1 → 2; of a limit",
            compared(differences=[ARRIVALS, ADMISSION]),
        ),
        (
            "v 1 → 2; first in step 5, admission: of a limit",
            compared(settings=SETTINGS[:1], differences=[ADMISSION, ARRIVALS]),
        ),
        (
            "first in step 0, batch: of a cause",
            compared(differences=[difference("batch", 0, 1_000)]),
        ),
        (
            "first in step 1,000, length: of a cause",
            compared(differences=[difference("length", -1, 1_000)]),
        ),
        *(
            (f"v 1 → 2{wait}", compared(*waits, settings=SETTINGS[:1]))
            for wait, waits in (
                ("", [waiting("x", 5.0, 5.0)]),
                ("", [waiting("x", 2.25, 1.5)]),
                ("; all requests together waited for x 1.50 s → 2.50 s", [waiting("x", 1.5, 2.5)]),
                (
                    "; all requests together waited for y 3.00 s → 0 s",
                    [waiting("x", 1.0, 2.0), waiting("y", 3.0, 0.0), waiting("z", 5.0, 6.0)],
                ),
                (
                    "; all requests together waited for y 3.00 s → 0 s",
                    [waiting("x", 0.5, 3.0), waiting("y", 3.0, 0.0)],
                ),
                (
                    "; all requests together waited for y 0 s → 3.00 s",
                    [waiting("x", 3.0, 0.5), waiting("y", 0.0, 3.0)],
                ),
                ("", [of_requests("TTFT, p50", None, 9.0)]),
            )
        ),
    ],
)
def test_the_verdict_gives_a_reason(reason: str, comparison: RunComparison) -> None:
    assert verdict.sentence(comparison).partition("; because ")[2] == reason


LIMIT = "≥: at least, since some of the requests had not ended"


@pytest.mark.parametrize(
    ("comparison", "remarks"),
    [
        (compared(SLOWER), []),
        (compared(SLOWER, of_requests("TPOT, p50", 1.0, 2.0, a_is_least=True)), [LIMIT]),
        (compared(of_requests("TPOT, p50", 1.0, 2.0, b_is_least=True)), [LIMIT]),
        (compared(num_only_a=2), ["2 requests only in A"]),
        (compared(num_only_b=1), ["1 request only in B"]),
        (compared(num_other_prompts=1), ["1 request in both with other prompts"]),
    ],
)
def test_limits_and_requests_that_are_not_compared_are_remarked_on(
    comparison: RunComparison, remarks: list[str]
) -> None:
    assert verdict.remarks(comparison) == remarks
