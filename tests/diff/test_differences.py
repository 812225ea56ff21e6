"""The description of each kind of difference between two steps, word for word."""

from typing import Any

import pytest

from seqtop.diff.comparison import Difference, DifferenceKind, compare
from seqtop.diff.run import StepDecisions
from tests.support import events
from tests.support.decided_runs import NO_DECISION, a_request, a_run

NAMES = "pqrstuvwxyz"
P, Q, R, S, T, U, V, W, X, Y, Z = range(len(NAMES))
REQUESTS = [a_request(name) for name in NAMES]


def idle(**decisions: Any) -> StepDecisions:
    return NO_DECISION._replace(**decisions)


def free(num_free: int, num_cached: int | None = None, num_running: int = 0) -> dict[str, Any]:
    stats = events.stats(
        num_free_blocks=num_free, num_cached_blocks=num_cached, num_running=num_running
    )
    return {"stats": stats}


CASES: list[tuple[DifferenceKind, StepDecisions, StepDecisions, str, str, str, str]] = [
    (
        "arrivals",
        idle(arrived=(P, Q)),
        idle(arrived=(Q, P)),
        "arrived before this step: p, q",
        "arrived before this step: q, p",
        "the requests arrived in another order",
        "pq",
    ),
    (
        "arrivals",
        idle(arrived=(P, Q, R, S, T)),
        idle(arrived=(U, V, W, X)),
        "arrived before this step: p, q, r, s and 1 more",
        "arrived before this step: u, v, w, x",
        "other requests had arrived by then",
        "pqrstuvw",
    ),
    (
        "ends",
        idle(ended=((P, "E"), (Q, "F"), (R, "E"), (S, "E"), (T, "E"))),
        idle(ended=((Q, "E"),)),
        "ended before this step: p (E), q (F), r (E), s (E)",
        "ended before this step: q (E)",
        "a request ended, or was aborted, at another time or for another reason",
        "pqrst",
    ),
    (
        "ends",
        idle(),
        idle(ended=((Q, "E"),)),
        "ended before this step: none",
        "ended before this step: q (E)",
        "a request ended, or was aborted, at another time or for another reason",
        "q",
    ),
    (
        "preemption",
        idle(preempted=tuple((number, None, "swap") for number in range(5)), **free(1, 2)),
        idle(**free(5, None)),
        "preempted p by swap, q by swap, r by swap, s by swap",
        "preempted none",
        (
            "one run lacked blocks where the other did not: after the step, 3 and 5 blocks were"
            " available"
        ),
        "pqrst",
    ),
    (
        "preemption",
        idle(preempted=((P, Q, "swap"),)),
        idle(preempted=((P, Q, "recompute"),)),
        "preempted p by swap for q",
        "preempted p by recompute for q",
        "the preemption mode differs",
        "p",
    ),
    (
        "preemption",
        idle(preempted=((P, Q, "swap"),)),
        idle(preempted=((R, None, "swap"),)),
        "preempted p by swap for q",
        "preempted r by swap",
        "the policy that chooses the request to preempt differs",
        "pr",
    ),
    (
        "admission order",
        idle(admitted=((P, 0), (Q, 0)), waits=((R, "seq_limit", 0), (S, "no_blocks", 1))),
        idle(admitted=((P, 0), (R, 0))),
        (
            "admitted p, q; r was left waiting: max_num_seqs sequences are running;"
            " s was left waiting: too few blocks are free"
        ),
        "admitted p, r",
        "the order of the waiting queue differs",
        "qr",
    ),
    (
        "admission order",
        idle(admitted=((P, 4), (Q, 0))),
        idle(admitted=((Q, 4), (P, 0))),
        "admitted p, q",
        "admitted q, p",
        "the order of the waiting queue differs",
        "pq",
    ),
    (
        "admission",
        idle(admitted=((P, 0), (Q, 0))),
        idle(admitted=((P, 0),), waits=tuple((n, "no_blocks", 2) for n in (R, Q, S, T, U))),
        "admitted p, q",
        (
            "admitted p; r was left waiting: too few blocks are free; q was left waiting: too few"
            " blocks are free; s was left waiting: too few blocks are free; t was left waiting: too"
            " few blocks are free"
        ),
        "the other run left q waiting: too few blocks are free (2 more blocks needed)",
        "q",
    ),
    (
        "admission",
        idle(waits=((Q, "seq_limit", 0),)),
        idle(admitted=((Q, 0), (R, 0))),
        "admitted none; q was left waiting: max_num_seqs sequences are running",
        "admitted q, r",
        "the other run left q waiting: max_num_seqs sequences are running",
        "qr",
    ),
    (
        "admission",
        idle(admitted=((P, 0),)),
        idle(waits=((Q, "seq_limit", 0), (R, "seq_limit", 0))),
        "admitted p",
        (
            "admitted none; q was left waiting: max_num_seqs sequences are running; r was left"
            " waiting: max_num_seqs sequences are running"
        ),
        "in the other run p was behind q",
        "p",
    ),
    (
        "admission",
        idle(admitted=((P, 0),), **free(9, 9, 9)),
        idle(**free(3, 2, 7)),
        "admitted p",
        "admitted none",
        (
            "the other run did not admit p and gave no reason, with 5 blocks available and 7"
            " running sequences"
        ),
        "p",
    ),
    (
        "admission",
        idle(**free(1, None, 0)),
        idle(admitted=((P, 0),), **free(9, 9, 9)),
        "admitted none",
        "admitted p",
        (
            "the other run did not admit p and gave no reason, with 1 block available and 0"
            " running sequences"
        ),
        "p",
    ),
    (
        "prefix hits",
        idle(admitted=((P, 4), (Q, 1), (R, 2_000))),
        idle(admitted=((P, 4), (Q, 1_000), (R, 3_000))),
        "admitted p, q, r",
        "admitted p, q, r",
        "q found 1 token in the prefix cache in the one run and 1,000 in the other",
        "qr",
    ),
    (
        "batch",
        idle(chunks=((P, 7), (R, 2)), decodes=(Q,)),
        idle(decodes=(Q, U, T)),
        "ran 3 requests with 10 tokens, p, r only here",
        "ran 3 requests with 3 tokens, t, u only here",
        "the requests in the batch differ",
        "prtu",
    ),
    (
        "batch",
        idle(decodes=(Q,)),
        idle(chunks=((P, 7),), decodes=(Q,)),
        "ran 1 request with 1 token",
        "ran 2 requests with 8 tokens, p only here",
        "the requests in the batch differ",
        "p",
    ),
    (
        "token budget",
        idle(chunks=((P, 7), (Q, 5)), decodes=(R,)),
        idle(chunks=((P, 7), (Q, 1_001)), decodes=(R,)),
        "computed 5 tokens of q, 13 in total",
        "computed 1,001 tokens of q, 1,009 in total",
        "the token budget of a step differs: no step computed more than 13 and 1,009 tokens",
        "q",
    ),
    (
        "token budget",
        idle(chunks=((P, 7), (Q, 5)), decodes=(R,)),
        idle(chunks=((P, 6), (Q, 6)), decodes=(R,)),
        "computed 7 tokens of p, 13 in total",
        "computed 6 tokens of p, 13 in total",
        "the tokens of the step were divided in another way",
        "pq",
    ),
    (
        "batch",
        idle(chunks=((P, 7), (Q, 1))),
        idle(chunks=((P, 7),), decodes=(Q,)),
        "ran the same requests",
        "ran them in another order",
        "the order of the batch differs",
        "pq",
    ),
    (
        "batch",
        idle(decodes=(P, Q)),
        idle(decodes=(Q, P)),
        "ran the same requests",
        "ran them in another order",
        "the order of the batch differs",
        "pq",
    ),
    (
        "block moves",
        idle(chunks=((P, 7),), decodes=(Q,), moves=(1, 2, 3)),
        idle(chunks=((P, 7),), decodes=(Q,), moves=(1, 2, 4)),
        "swapped 1 block in and 2 blocks out, copied 3 blocks",
        "swapped 1 block in and 2 blocks out, copied 4 blocks",
        "the batches are equal, the blocks that are moved before differ",
        "qp",
    ),
    (
        "lookahead",
        idle(decodes=(Q,), lookahead=(1, 2)),
        idle(decodes=(Q,), lookahead=(2, 1)),
        "had 1 lookahead slot, for 2 iterations",
        "had 2 lookahead slots, for 1 iteration",
        "the batches are equal, the slots for further tokens differ",
        "q",
    ),
    (
        "tokens",
        idle(decodes=(Q,), tokens=1),
        idle(decodes=(Q,), tokens=2),
        "sampled its tokens",
        "sampled other tokens for the same batch",
        "the scheduler's decisions are equal, the sampled tokens differ",
        "q",
    ),
]


@pytest.mark.parametrize(
    ("kind", "one", "other", "of_a", "of_b", "cause", "names"),
    CASES,
    ids=[f"{case[0]}: {case[5]}" for case in CASES],
)
def test_a_difference_is_described(
    kind: DifferenceKind,
    one: StepDecisions,
    other: StepDecisions,
    of_a: str,
    of_b: str,
    cause: str,
    names: str,
) -> None:
    """Two equal steps are before it and three behind it."""
    a, b = (
        a_run([NO_DECISION, NO_DECISION, step, *[idle(tokens=5)] * 3], REQUESTS)
        for step in (one, other)
    )
    comparison = compare(a, b)
    expected = Difference(kind, of_a, of_b, 2, 2, cause, [*names], 3, 3)
    assert comparison.differences == [expected]
    assert (comparison.num_equal_steps, comparison.num_matching_steps) == (2, 5)
    assert compare(a, a).differences == compare(b, b).differences == []
    (mirrored,) = compare(b, a).differences
    assert mirrored.kind == kind
    assert len(names) == 8 or {*mirrored.request_ids} == {*names}, "some of more than eight"
    if {"ran them in another order", "sampled its tokens"}.isdisjoint((of_a, of_b)):
        assert (mirrored.a, mirrored.b) == (of_b, of_a)


def test_the_parts_of_a_step_are_compared_in_the_order_of_a_scheduler() -> None:
    """A step that differs in several parts differs in the first of them."""
    parts: list[tuple[DifferenceKind, dict[str, Any]]] = [
        ("tokens", {"tokens": 1}),
        ("lookahead", {"lookahead": (1, 1)}),
        ("block moves", {"moves": (1, 0, 0)}),
        ("batch", {"decodes": (P,)}),
        ("batch", {"chunks": ((Q, 5),)}),
        ("admission", {"admitted": ((Q, 0),)}),
        ("preemption", {"preempted": ((R, Q, "swap"),)}),
        ("ends", {"ended": ((S, "E"),)}),
        ("arrivals", {"arrived": (T,)}),
    ]
    one, base = NO_DECISION, a_run([NO_DECISION], REQUESTS)
    for kind, fields in parts:
        one = one._replace(**fields)
        (difference,) = compare(base, a_run([one], REQUESTS)).differences
        assert difference.kind == kind


def test_waits_and_figures_of_a_step_are_no_decisions() -> None:
    other = idle(waits=((P, "no_blocks", 2),), position=9, **free(5))
    a, b = a_run([NO_DECISION], REQUESTS), a_run([other], REQUESTS)
    assert not compare(a, b).is_different


Found = tuple[DifferenceKind, int, int, int, int]


def letters(text: str) -> list[StepDecisions]:
    """Steps that sample other tokens for each letter, with more slots for capital letters."""
    return [idle(tokens=ord(own.lower()), lookahead=(own.isupper(), 1)) for own in text]


@pytest.mark.parametrize(
    ("a", "b", "found", "num_equal", "num_matching"),
    [
        ("", "", [], 0, 0),
        ("abc", "abc", [], 3, 3),
        ("", "a", [("length", -1, 0, -1, -1)], 0, 0),
        ("abc", "ab", [("length", 2, -1, -1, -1)], 2, 2),
        ("abcdef", "abxdef", [("tokens", 2, 2, 3, 3)], 2, 5),
        ("abcdefg", "abxydefg", [("tokens", 2, 2, 3, 4)], 2, 6),
        ("abcdef", "abxycdef", [("tokens", 2, 2, 2, 4)], 2, 6),
        ("abcdef", "abxxxx", [("tokens", 2, 2, -1, -1)], 2, 2),
        ("abc", "ax", [("tokens", 1, 1, -1, -1)], 1, 1),
        ("abcdef", "abxdefg", [("tokens", 2, 2, 3, 3), ("length", -1, 6, -1, -1)], 2, 5),
        ("abcdefgh", "aBcdefgx", [("lookahead", 1, 1, 2, 2), ("tokens", 7, 7, -1, -1)], 1, 6),
        ("abcdefg", "axCyefg", [("tokens", 1, 1, 4, 4), ("lookahead", 2, 2, 4, 4)], 1, 4),
        ("abcdefgh", "axcdefxh", [("tokens", 1, 1, 2, 2)], 1, 5),
    ],
)
def test_the_comparison_goes_on_where_the_runs_meet_again(
    a: str, b: str, found: list[Found], num_equal: int, num_matching: int
) -> None:
    comparison = compare(a_run(letters(a)), a_run(letters(b)))
    assert [
        (own.kind, own.step_a, own.step_b, own.again_a, own.again_b)
        for own in comparison.differences
    ] == found
    assert (comparison.num_equal_steps, comparison.num_matching_steps) == (num_equal, num_matching)
    assert comparison.first is (comparison.differences[0] if found else None)


@pytest.mark.parametrize(
    ("most", "kinds"), [(1, ["tokens"]), (2, ["tokens"]), (3, ["tokens", "lookahead"])]
)
def test_so_many_steps_are_described(
    monkeypatch: pytest.MonkeyPatch, most: int, kinds: list[DifferenceKind]
) -> None:
    monkeypatch.setattr("seqtop.diff.comparison._MAX_DESCRIBED", most)
    for a, b in (("abc", "xyC"), ("abcde" + "fg", "xbcde" + "yG")):
        run = a_run(letters(a)), a_run(letters(b))
        assert [difference.kind for difference in compare(*run).differences] == kinds


def test_the_settings_that_differ_are_named() -> None:
    a, b = a_run(letters("abc")), a_run(letters("abx"))
    a.info = events.engine_info(
        engine_id="one", queue_order="fcfs", scheduler_settings={"policy": "fcfs", "same": 1}
    )
    assert compare(a, b).settings == compare(b, a).settings == []
    b.info = events.engine_info(
        engine_id="two", max_num_seqs=9, bytes_per_block=7, scheduler_settings={"same": 1}
    )
    comparison = compare(a, b)
    assert [(own.name, own.a, own.b) for own in comparison.settings] == [
        ("max_num_seqs", 8, 9),
        ("queue_order", "fcfs", "priority"),
        ("policy", "fcfs", None),
    ]
    assert comparison.first is not None
    assert comparison.first.cause == (
        "the settings differ: max_num_seqs 8 → 9, queue_order fcfs → priority, policy fcfs → None;"
        " the scheduler's decisions are equal, the sampled tokens differ"
    )
    assert not compare(b, b).is_different
    assert compare(a_run([]), a_run([])).is_different is False


def test_runs_with_equal_decisions_and_other_settings_differ() -> None:
    a, b = a_run(letters("abc")), a_run(letters("abc"))
    a.info, b.info = events.engine_info(), events.engine_info(dtype="bfloat16")
    comparison = compare(a, b)
    assert (comparison.is_different, comparison.differences) == (True, [])


def test_the_requests_of_both_runs_are_counted() -> None:
    a = a_run([], [a_request("x"), a_request("y"), a_request("z", 4), a_request("p")])
    b = a_run([], [a_request("y"), a_request("z", 5), a_request("q")])
    a.num_gaps, b.num_gaps = 1, 3
    found = compare(a, b)
    assert (found.num_requests, found.num_only_a, found.num_only_b) == (1, 2, 1)
    assert (found.num_other_prompts, found.num_gaps) == (1, 4)


def test_the_figures_of_recordings() -> None:
    a, b = a_run(letters("abc"), [a_request("x"), a_request("y")]), a_run([])
    a.end_time, a.num_output_tokens, a.num_preemptions, a.num_lost_tokens = 0.5, 10, 5, 6
    a.num_cached_tokens, a.num_admitted_tokens = 7, 14
    a.requests[0].end = "FINISHED_STOPPED"
    figures = [own for own in compare(a, b).figures if not own.of_requests]
    assert [(own.name, own.unit, own.a, own.b, own.better) for own in figures] == [
        ("steps", "steps", 3, 0, 0),
        ("duration", "s", 0.5, 0.0, 0),
        ("requests", "requests", 2, 0, 0),
        ("requests served", "requests", 1, 0, 1),
        ("output", "tokens", 10, 0, 0),
        ("throughput", "tokens/s", 20.0, None, 1),
        ("preemptions", "times", 5, 0, -1),
        ("lost to preemption", "tokens", 6, 0, -1),
        ("found in the prefix cache", "tokens", 7, 0, 1),
        ("prefix-cache hit share", "share", 0.5, None, 1),
    ]
