"""Accounts as a table and as JSON, of charges that are made up."""

from __future__ import annotations

import msgspec
import pytest

from seqtop.explain import chain
from seqtop.ledger import account
from seqtop.ledger.account import Account, Charge, ChargedTo, Evidence
from seqtop.ledger.ledger import Blame, Harm, HarmTotal
from seqtop.ledger.report import (
    Row,
    as_json,
    as_text,
    cause_label,
    causes,
    rows,
    signed,
    totals_as_json,
    totals_as_text,
)
from seqtop.sequence import RequestMetrics
from seqtop.state import RequestState
from seqtop.wire.snapshot import StepCosts

COSTS = StepCosts(0.01, 0.0002, 0.003, 1_234)
KNOWN = (
    "Estimated from the costs of tokens after 1,234 steps: 10.0 ms a step, 200 µs a prefill token,"
    " 3.00 ms a decode token"
)


def charge(
    seconds: float,
    name: str | None = None,
    cause: str = account.SHARED_STEP,
    evidence: Evidence = "measured",
    to: ChargedTo = "request",
) -> Charge:
    return Charge(to, name, cause, evidence, seconds)


def blame(
    charges: list[Charge],
    harms: list[Harm] | None = None,
    costs: StepCosts = COSTS,
    *,
    first_token: float | None = 100.25,
    finished: float | None = 101.0,
) -> Blame:
    metrics = RequestMetrics(100.0, 100.5, 100.1, first_token, 0.1, finished)
    request = RequestState("victim", metrics, [1])
    request.finish_reason = None if finished is None else "stop"
    own = Account(request)
    own.seconds = sum(item.seconds for item in charges)
    own._sums = {
        (item.charged_to, item.request_id, item.cause, item.evidence): item.seconds
        for item in charges
    }
    return Blame(request, own, harms or [], costs, "the scheduler takes it all")


CHARGES = [
    charge(0.4, None, "decode", "estimated", "itself"),
    charge(0.1, None, "prefill", "measured", "itself"),
    charge(0.25, "r1", "no_blocks"),
    charge(0.05, "r1", evidence="estimated"),
    charge(0.16, None, "paused", "measured", "settings"),
    charge(0.03, None, "between_steps", "measured", "host"),
    charge(0.07, None, account.STEP_TIME, "unexplained", "unexplained"),
    charge(-0.06, None, account.NO_ESTIMATE, "unexplained", "unexplained"),
]


def test_the_text_of_an_account() -> None:
    """The unexplained part is last, and has its sign."""
    harms = [
        Harm(
            "r2", [charge(0.2, "victim", evidence="estimated"), charge(0.3, "victim", "no_blocks")]
        ),
        Harm("r3", [charge(0.1, "victim", account.QUEUE_HEAD)]),
    ]
    assert as_text(blame(CHARGES, harms)).splitlines() == [
        "victim: TTFT 250 ms, end to end 1.00 s (stop)",
        "The run: the scheduler takes it all.",
        "   time  share  measured  estimated  charged to",
        " 500 ms    50%    100 ms     400 ms  itself: decode 400 ms, prefill 100 ms",
        " 300 ms    30%    250 ms    50.0 ms  r1: no free blocks 250 ms, shared steps 50.0 ms",
        " 160 ms    16%    160 ms             settings: paused",
        "30.0 ms   3.0%   30.0 ms             host: between steps",
        (
            "10.0 ms   1.0%                       unexplained: difference of shared steps and their"
            " estimates 70.0 ms, shared steps, before there were enough for estimates -60.0 ms"
        ),
        " 1.00 s   100%",
        "",
        "  time    measured  estimated  delayed by it",
        "500 ms      300 ms     200 ms  r2: no free blocks 300 ms, shared steps 200 ms",
        "100 ms      100 ms             r3: ahead in the queue",
        "600 ms                         all of 2 requests",
        "",
        f"{KNOWN}.",
    ]


@pytest.mark.parametrize(
    ("first_token", "finished", "words"),
    [
        (100.25, 101.0, "TTFT 250 ms, end to end 1.00 s (stop)"),
        (None, 101.0, "no first token, end to end 1.00 s (stop)"),
        (100.0, None, "TTFT 0 s, 500 ms since its arrival"),
        (None, None, "no first token, 500 ms since its arrival"),
    ],
)
def test_the_first_lines_say_how_long_it_took(
    first_token: float | None, finished: float | None, words: str
) -> None:
    text = as_text(blame([charge(0.5, "r1")], first_token=first_token, finished=finished))
    assert text.splitlines() == [
        f"victim: {words}",
        "The run: the scheduler takes it all.",
        "  time  share  measured  estimated  charged to",
        "500 ms   100%    500 ms             r1: shared steps",
        "500 ms   100%",
        "",
        "It delayed no other request.",
        "",
        f"{KNOWN}.",
    ]


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        (COSTS, f"{KNOWN}."),
        (StepCosts(num_steps=1), "Nothing is estimated: 1 step is too few."),
        (StepCosts(num_steps=7), "Nothing is estimated: 7 steps are too few."),
        (
            StepCosts(0.01, 0.0002, 0.003, 1_234, without_graph=0.002),
            f"{KNOWN}, 2.00 ms more without a CUDA graph.",
        ),
    ],
)
def test_the_last_line_says_what_estimates_are_made_of(costs: StepCosts, sentence: str) -> None:
    assert as_text(blame([charge(0.5, "r1")], costs=costs)).splitlines()[-1] == sentence
    total = HarmTotal("r1", 2.0, 0.0, 0.5)
    assert totals_as_text(costs, [total]).splitlines()[-1] == sentence


@pytest.mark.parametrize(("num_requests", "num_delayed"), [(12, 12), (13, 13), (14, 14), (30, 12)])
def test_twelve_rows_name_a_request_and_one_has_the_others(
    num_requests: int, num_delayed: int
) -> None:
    """An object that is no request is always named; what was delayed is shortened as well."""
    names = [f"r{number}" for number in range(num_requests)]
    charges = [charge((100 - number) / 1e3, name) for number, name in enumerate(names)]
    charges.append(charge(0.001, None, "paused", to="settings"))
    harms = [Harm(name, [charge(0.001, "victim")]) for name in names[:num_delayed]]
    lines = as_text(blame(charges, harms)).splitlines()[3:]
    own, delayed = lines[: lines.index("")], lines[lines.index("") + 2 :]
    delayed = delayed[: delayed.index("")]
    ends = [line.split("  ")[-1].strip() for line in own]
    others = num_requests - 12
    merged = [f"{others} other request{'s' * (others > 1)}: shared steps"] if others else []
    total = own[-1].split()
    assert ends[:-1] == [
        *(f"{name}: shared steps" for name in names[:12]),
        *merged,
        "settings: paused",
    ]
    assert total[2:] == ["100%"]
    if others:
        seconds = sum(100 - number for number in range(12, num_requests)) / 1e3
        assert own[12].split()[:2] == signed(seconds).split()
    ends = [line.split("  ")[-1].strip() for line in delayed]
    others = num_delayed - 12
    merged = [f"{others} other request{'s' * (others > 1)}: shared steps"] if others else []
    assert ends == [
        *(f"{name}: shared steps" for name in names[:12]),
        *merged,
        f"all of {num_delayed} requests",
    ]


def test_a_delayed_request_that_is_named_like_a_thing_is_one_of_the_others() -> None:
    names = [*(f"r{number}" for number in range(12)), "host"]
    harms = [Harm(name, [charge(0.001, "victim")]) for name in names]
    assert "1 other request: shared steps" in as_text(blame([charge(0.5, "r1")], harms))


def test_charges_are_listed_by_who_is_charged_and_the_largest_first() -> None:
    charges = [
        charge(0.5, None, account.STEP_TIME, "unexplained", "unexplained"),
        charge(0.1, "r1"),
        charge(0.3, None, "paused", to="settings"),
        charge(0.25, "r1", "no_blocks"),
        charge(0.2, None),
        charge(0.001, "unexplained"),
    ]
    listed = rows(charges)
    assert [(row.title, row.charges) for row in listed] == [
        ("r1", [charges[1], charges[3]]),
        ("settings", [charges[2]]),
        ("other requests", [charges[4]]),
        ("unexplained", [charges[5]]),
        ("unexplained", [charges[0]]),
    ]


def test_the_seconds_of_a_row_are_those_with_such_evidence() -> None:
    row = Row("r1", [charge(0.1), charge(0.2, evidence="estimated"), charge(0.4, cause="prefill")])
    assert row.seconds() == pytest.approx(0.7)
    assert row.seconds("measured") == pytest.approx(0.5)
    assert row.seconds("estimated") == pytest.approx(0.2)
    assert row.seconds("measured", "estimated") == pytest.approx(0.7)
    assert row.seconds("unexplained") == 0


@pytest.mark.parametrize(
    ("charges", "words"),
    [
        ([charge(0.1)], "shared steps"),
        ([charge(0.1), charge(0.2, evidence="estimated")], "shared steps"),
        (
            [charge(0.1), charge(0.2, cause="no_blocks")],
            "no free blocks 200 ms, shared steps 100 ms",
        ),
        (
            [charge(0.1), charge(-0.2, cause="decode"), charge(0.15, cause="prefill")],
            "decode -200 ms, prefill 150 ms, shared steps 100 ms",
        ),
        (
            [
                charge(0.1),
                charge(0.2, cause="decode"),
                charge(0.3, cause="prefill"),
                charge(0.05, cause="paused"),
                charge(0.16),
            ],
            "prefill 300 ms, shared steps 260 ms, decode 200 ms and 1 more",
        ),
        (
            [charge(number / 10, cause=name) for number, name in enumerate("abcdef", 1)],
            "f 600 ms, e 500 ms, d 400 ms and 3 more",
        ),
    ],
)
def test_the_causes_of_a_row_are_named_up_to_three(charges: list[Charge], words: str) -> None:
    assert causes(Row("r1", charges)) == words


@pytest.mark.parametrize(
    ("cause", "label"),
    [
        (account.QUEUE_HEAD, "ahead in the queue"),
        (account.UNNAMED_BLOCKS, "blocks in use that are in no block table"),
        (account.STEP_TIME, "difference of shared steps and their estimates"),
        (account.NO_ESTIMATE, "shared steps, before there were enough for estimates"),
        (chain.RECOMPUTE, "recomputation"),
        (chain.NOT_RECORDED, "steps that are not recorded"),
        ("lora_slots", "max_loras"),
        ("WAITING_FOR_FSM", "grammar"),
    ],
)
def test_a_cause_has_a_label(cause: str, label: str) -> None:
    assert cause_label(cause) == label


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250 ms"), (-0.25, "-250 ms"), (0.0, "0 s"), (0.5, "500 ms")]
)
def test_seconds_may_be_negative(seconds: float, text: str) -> None:
    assert signed(seconds) == text


def test_the_json_of_an_account() -> None:
    harms = [Harm("r2", [charge(0.2, "victim"), charge(0.3, "victim", "no_blocks")])]
    document = msgspec.json.decode(as_json(blame(CHARGES[:3], harms)))
    own = document.pop("harmed_by")
    assert [item["seconds"] for item in own] == [0.4, 0.25, 0.1]
    assert document == {
        "request_id": "victim",
        "arrival_time": 100.0,
        "ttft_seconds": 0.25,
        "e2e_seconds": 1.0,
        "finish_reason": "stop",
        "seconds": 0.75,
        "verdict": "the scheduler takes it all",
        "harm_done": [
            {
                "request_id": "r2",
                "seconds": 0.5,
                "charges": msgspec.to_builtins(harms[0].charges),
            }
        ],
        "step_costs": {
            "per_step_seconds": 0.01,
            "per_prefill_token_seconds": 0.0002,
            "per_decode_token_seconds": 0.003,
            "without_graph_seconds": 0.0,
            "num_steps": 1_234,
        },
    }
    document = msgspec.json.decode(as_json(blame(CHARGES, costs=StepCosts(num_steps=3))))
    assert document["step_costs"] is None


@pytest.mark.parametrize(
    ("number", "more"), [(30, []), (31, ["and 1 more"]), (1_050, ["and 1,020 more"])]
)
def test_thirty_requests_that_delayed_others_are_listed(number: int, more: list[str]) -> None:
    totals = [HarmTotal(f"r{index}", 2.0, 0.5 * (index == 1), 0.25) for index in range(number)]
    lines = totals_as_text(COSTS, totals).splitlines()
    assert lines == [
        "  harm  estimated  waited  request",
        "2.00 s             250 ms  r0",
        "2.00 s     500 ms  250 ms  r1",
        *(f"2.00 s             250 ms  r{index}" for index in range(2, 30)),
        *more,
        "",
        f"{KNOWN}.",
    ]
    document = msgspec.json.decode(totals_as_json(COSTS, totals))
    assert document["requests"] == msgspec.to_builtins(totals)
    assert document["step_costs"]["num_steps"] == 1_234
