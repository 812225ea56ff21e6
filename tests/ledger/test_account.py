"""The requests charged for each piece of a request's time, by the shares of a made-up step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from seqtop.explain.chain import NOT_RECORDED, RECOMPUTE, UNKNOWN, PartKind, Piece
from seqtop.ledger import account
from seqtop.ledger.account import (
    NO_ESTIMATE,
    QUEUE_HEAD,
    SHARED_STEP,
    STEP_TIME,
    UNNAMED_BLOCKS,
    Account,
    ChargedTo,
    Evidence,
)
from seqtop.sequence import RequestMetrics
from seqtop.state import RequestState
from seqtop.state.harm import Shares, StepHarm
from seqtop.state.wait_causes import ARRIVING, BETWEEN_STEPS, PACED, SESSION_INPUT
from seqtop.wire.messages import Preemption

Expected = tuple[ChargedTo, str | None, str, Evidence, float]
ALONE = 0.05
"""The seconds of a step with one request of its batch only."""
DELAYS = {"a": 0.01, "b": 0.03, "c": 0.002}
FREE = Shares({}, 0.0, 0.0)


class MadeUpStep:
    """A step of `StepHarm`, with what an account asks it for."""

    def __init__(
        self,
        *batch: str,
        shares: Shares = FREE,
        has_estimates: bool = True,
        stalled: float = 0.0,
        asked: tuple[str, str, bool] | None = None,
    ) -> None:
        self.tokens = dict.fromkeys(batch)
        self.has_estimates = has_estimates
        self.stalled = stalled
        self._shares, self._asked = shares, asked

    def alone(self, request_id: str) -> float:
        assert request_id == "a"
        return ALONE

    def delay(self, request_id: str) -> float:
        return DELAYS[request_id] if request_id in self.tokens else 0.0

    def shares(self, cause: str, lora: str, *, is_behind: bool) -> Shares:
        assert self._asked in (None, (cause, lora, is_behind))
        return self._shares


def new_account(only: str | None = None) -> Account:
    metrics = RequestMetrics(0.0, 0.0, None, None, None)
    return Account(RequestState("a", metrics, [1], lora="adapter"), only)


def piece(
    kind: PartKind,
    cause: str = "",
    seconds: float = 0.1,
    *,
    head: str | None = None,
    preempted_for: str | None = None,
    between: str = "",
) -> Piece:
    preemption = Preemption("a", "recompute", 9, preempted_for) if preempted_for else None
    return Piece(kind, cause, seconds, head, preemption, between)


def charged(own: Account) -> list[tuple[object, ...]]:
    return [
        (item.charged_to, item.request_id, item.cause, item.evidence, pytest.approx(item.seconds))
        for item in own.charges()
    ]


def enter(own: Account, step: MadeUpStep | None) -> None:
    own.enter(cast("StepHarm | None", cast("Any", step)))


def itself(cause: str, seconds: float = 0.1, evidence: Evidence = "measured") -> Expected:
    return "itself", None, cause, evidence, seconds


def to(name: str | None, cause: str, seconds: float, evidence: Evidence = "measured") -> Expected:
    return "request", name, cause, evidence, seconds


def setting(cause: str, seconds: float = 0.1) -> Expected:
    return "settings", None, cause, "measured", seconds


def host(cause: str, seconds: float = 0.1) -> Expected:
    return "host", None, cause, "measured", seconds


def nobody(cause: str, seconds: float = 0.1) -> Expected:
    return "unexplained", None, cause, "unexplained", seconds


HELD_BY = Shares({"a": 0.1, "b": 0.4, "c": 0.2}, 0.3, 0.0)
"""The holders of what is waited for: the request itself, others, and nobody who is known."""
BEHIND = Shares({"a": 0.1, "b": 0.4, "c": 0.2}, 0.05, 0.25)
"""The same behind the head of the queue, for which a part is kept."""


def holders(cause: str) -> list[Expected]:
    return [
        to("b", cause, 0.04),
        nobody(UNNAMED_BLOCKS, 0.03),
        to("c", cause, 0.02),
        itself(cause, 0.01),
    ]


@pytest.mark.parametrize(
    ("step", "own", "expected"),
    [
        # Alone in its batch, or where the batch is not known.
        (None, piece("prefill"), [itself("prefill")]),
        (MadeUpStep("a"), piece("decode", "mixed_batch"), [itself("decode")]),
        (MadeUpStep("a", has_estimates=False), piece("decode"), [itself("decode")]),
        (MadeUpStep("a", "b"), piece("prefill", NOT_RECORDED), [nobody(NOT_RECORDED)]),
        (None, piece("decode", NOT_RECORDED), [nobody(NOT_RECORDED)]),
        # In a shared step.
        (MadeUpStep("a", "b", has_estimates=False), piece("decode"), [nobody(NO_ESTIMATE)]),
        (
            MadeUpStep("a", "b", "c"),
            piece("decode"),
            [
                itself("decode", 0.05, "estimated"),
                to("b", SHARED_STEP, 0.03, "estimated"),
                nobody(STEP_TIME, 0.1 - 0.05 - 0.03 - 0.002),
                to("c", SHARED_STEP, 0.002, "estimated"),
            ],
        ),
        (
            MadeUpStep("a", "b"),
            piece("decode", seconds=0.06),
            [
                itself("decode", 0.05, "estimated"),
                to("b", SHARED_STEP, 0.03, "estimated"),
                nobody(STEP_TIME, -0.02),
            ],
        ),
        # After a preemption.
        (None, piece("prefill", RECOMPUTE), [itself("prefill")]),
        (None, piece("prefill", RECOMPUTE, preempted_for="a"), [itself("prefill")]),
        (None, piece("prefill", RECOMPUTE, preempted_for="b"), [to("b", RECOMPUTE, 0.1)]),
        (None, piece("decode", preempted_for="b"), [itself("decode")]),
        (
            MadeUpStep("a", "b"),
            piece("prefill", RECOMPUTE, preempted_for="c"),
            [
                to("c", RECOMPUTE, 0.05, "estimated"),
                to("b", SHARED_STEP, 0.03, "estimated"),
                nobody(STEP_TIME, 0.02),
            ],
        ),
        # Between steps, while it runs.
        (None, piece("host"), [host(BETWEEN_STEPS)]),
        (None, piece("host", "another"), [host("another")]),
        (None, piece("host", PACED), [setting(PACED)]),
        # While it waits, between steps.
        (None, piece("queued", "no_blocks", between=PACED), [setting(PACED)]),
        (None, piece("queued", "no_blocks", between=BETWEEN_STEPS), [host(BETWEEN_STEPS)]),
        (
            MadeUpStep(shares=HELD_BY),
            piece("queued", "no_blocks", between=BETWEEN_STEPS),
            [host(BETWEEN_STEPS)],
        ),
        (
            MadeUpStep(shares=HELD_BY, stalled=1.0),
            piece("queued", "paused", between=BETWEEN_STEPS),
            [host(BETWEEN_STEPS)],
        ),
        (
            MadeUpStep(shares=HELD_BY, stalled=1.0),
            piece("queued", "no_blocks", between=BETWEEN_STEPS),
            holders("no_blocks"),
        ),
        (
            MadeUpStep(shares=HELD_BY, stalled=1.0),
            piece("queued", "no_blocks", between=PACED),
            holders("no_blocks"),
        ),
        # While it waits, in a step.
        (None, piece("queued", ARRIVING), [host(ARRIVING)]),
        (None, piece("queued", "paused"), [setting("paused")]),
        (None, piece("queued", "reserved_blocks"), [setting("reserved_blocks")]),
        (None, piece("queued", SESSION_INPUT), [itself(SESSION_INPUT)]),
        (None, piece("swapped", "no_blocks"), [nobody("no_blocks")]),
        (MadeUpStep(shares=HELD_BY), piece("queued", "unknown"), [nobody("unknown")]),
        (
            MadeUpStep(shares=HELD_BY, asked=("no_blocks", "adapter", False)),
            piece("preempted", "no_blocks"),
            holders("no_blocks"),
        ),
        (
            MadeUpStep(shares=BEHIND, asked=("seq_limit", "adapter", True)),
            piece("queued", "seq_limit", head="d"),
            [
                to("b", "seq_limit", 0.04),
                to("d", QUEUE_HEAD, 0.025),
                to("c", "seq_limit", 0.02),
                itself("seq_limit", 0.01),
                nobody(UNNAMED_BLOCKS, 0.005),
            ],
        ),
        (
            MadeUpStep(shares=Shares({}, 1.0, 0.0)),
            piece("queued", "no_blocks", head="d"),
            [nobody(UNNAMED_BLOCKS)],
        ),
        (
            MadeUpStep(shares=Shares({}, 0.0, 1.0)),
            piece("queued", "no_blocks", head="d"),
            [to("d", QUEUE_HEAD, 0.1)],
        ),
        (
            MadeUpStep(shares=Shares({"b": 1.0}, 0.0, 0.0)),
            piece("queued", "no_blocks"),
            [to("b", "no_blocks", 0.1)],
        ),
        # Nobody holds it: the limit itself is charged.
        (MadeUpStep(), piece("queued", "no_blocks"), [setting("no_blocks")]),
        # While it runs, but not in this step.
        (
            MadeUpStep(shares=HELD_BY),
            piece("unscheduled", "token_budget"),
            holders("token_budget"),
        ),
        (None, piece("unscheduled", "token_budget"), [nobody("token_budget")]),
        (MadeUpStep(shares=HELD_BY), piece("unscheduled", UNKNOWN), [nobody(UNKNOWN)]),
        (None, piece("unknown"), [nobody(UNKNOWN)]),
        (None, piece("unknown", "why"), [nobody("why")]),
        # No time is charged to nobody.
        (None, piece("decode", seconds=0.0), []),
    ],
)
def test_a_piece_is_charged(step: MadeUpStep | None, own: Piece, expected: list[Expected]) -> None:
    made = new_account()
    enter(made, step)
    made.charge(own)
    assert made.seconds == own.seconds
    assert charged(made) == expected
    assert sum(item.seconds for item in made.charges()) == pytest.approx(own.seconds)


def test_the_estimates_of_a_step_are_added_once() -> None:
    """A step in which the first token comes has two pieces."""
    own = new_account()
    step = MadeUpStep("a", "b")
    for _ in range(2):
        enter(own, step)
        own.charge(piece("prefill", seconds=0.07))
        own.charge(piece("decode", seconds=0.01))
    assert charged(own) == [
        itself("prefill", 0.1, "estimated"),
        to("b", SHARED_STEP, 0.06, "estimated"),
    ]
    assert own.seconds == pytest.approx(0.16)


def test_an_account_of_what_one_request_costs_has_no_other() -> None:
    """Time that is charged to nobody, and to the request itself, stays."""
    own = new_account("b")
    enter(own, MadeUpStep("a", "b", "c", shares=BEHIND))
    own.charge(piece("decode"))
    own.charge(piece("queued", "no_blocks", head="c"))
    assert charged(own) == [
        itself("decode", 0.05, "estimated"),
        to("b", "no_blocks", 0.04),
        to("b", SHARED_STEP, 0.03, "estimated"),
        nobody(STEP_TIME, 0.02),
        itself("no_blocks", 0.01),
        nobody(UNNAMED_BLOCKS, 0.005),
    ]
    own = new_account("d")  # it is not in the batch
    enter(own, MadeUpStep("a", "b"))
    own.charge(piece("decode", seconds=0.09))
    assert charged(own) == [itself("decode", 0.05, "estimated"), nobody(STEP_TIME, 0.04)]


@pytest.mark.parametrize(("max_others", "names"), [(3, "bcd"), (2, "bc"), (1, "b"), (0, "")])
def test_others_beyond_the_limit_are_not_told_apart(
    max_others: int, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "MAX_OTHERS", max_others)
    own = new_account()
    for name, seconds in [("b", 0.1), ("c", 0.2), ("b", 0.4), ("d", 0.8)]:
        enter(own, MadeUpStep(shares=Shares({name: 1.0}, 0.0, 0.0)))
        own.charge(piece("queued", "no_blocks", seconds))
    sums = {"b": 0.5, "c": 0.2, "d": 0.8}
    seconds_by_name = {item.request_id: item.seconds for item in own.charges()}
    expected: dict[str | None, float] = {name: sums[name] for name in names}
    if rest := sum(sums[name] for name in sums if name not in names):
        expected[None] = rest
    assert seconds_by_name == pytest.approx(expected)


@pytest.mark.parametrize(
    ("difference", "is_listed"),
    [(1e-6, False), (-1e-6, False), (1.1e-6, True), (-1.1e-6, True), (0.0, False)],
)
def test_a_difference_as_small_as_the_error_of_the_clock_is_not_listed(
    difference: float, is_listed: bool
) -> None:
    own = new_account()
    sums: Sequence[Any] = [("unexplained", None, STEP_TIME, "unexplained")]
    own._sums = dict.fromkeys(sums, difference)
    assert bool(own.charges()) == is_listed
    # Time that was charged to something is, however short.
    own._sums = {("host", None, BETWEEN_STEPS, "measured"): 1e-9}
    assert len(own.charges()) == 1
