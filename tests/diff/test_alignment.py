"""The steps at which two runs meet again, compared with a search of all pairs, and names."""

import itertools
import random
from collections.abc import Sequence

import pytest

from seqtop.diff.alignment import Alignment
from seqtop.diff.run import RunDecisions, RunRequest
from tests.support.decided_runs import NO_DECISION, a_request, a_run


def letters(text: Sequence[object]) -> RunDecisions:
    """A run with a step for each letter, in which two steps are equal if their letters are."""
    return a_run([NO_DECISION._replace(tokens=hash(letter)) for letter in text])


def meeting(a: Sequence[object], b: Sequence[object], first: int) -> tuple[int, int] | None:
    """The indices, behind `first`, of three equal steps in a row for which the fewest are skipped.

    Of those, the two runs skip nearly the same number, and the first run skips the fewest.
    """
    found = [
        (max(at_a, at_b), abs(at_a - at_b), at_a, at_b)
        for at_a in range(first, len(a) - 2)
        for at_b in range(first, len(b) - 2)
        if [*a[at_a : at_a + 3]] == [*b[at_b : at_b + 3]]
    ]
    return min(found)[2:] if found else None


def edited(draw: random.Random, run: list[int]) -> list[int]:
    """A run of other steps in some places: removed, added, moved, never the same one twice."""
    new = itertools.count(1_000)
    for _ in range(draw.randint(1, 5)):
        at, length = draw.randint(0, len(run)), draw.choice((1, 2, 3, 5, 17, 33))
        part, run[at : at + length] = run[at : at + length], []
        match draw.randrange(3):
            case 0:
                run[at:at] = itertools.islice(new, draw.choice((1, 2, 4, 16)))
            case 1:
                place = draw.randint(0, len(run))
                run[place:place] = part
    return run


def test_runs_meet_again_after_the_fewest_steps() -> None:
    for seed in range(80):
        draw = random.Random(seed)
        a = [*range(draw.choice((5, 20, 40, 80)))]
        b, at = edited(draw, a.copy()) or [-1], draw.choice((0, 0, 2))
        aligned = Alignment(letters(a), letters(b))
        for at_a, at_b in ((0, 0), (len(a) - 2, min(len(a) - 2, len(b))), (len(a), 0), (0, len(b))):
            pairs = zip(a[at_a:], b[at_b:], strict=False)
            num_equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            assert aligned.num_equal(at_a, at_b) == num_equal, f"seed {seed}"
        assert aligned.next_equal(at, at) == meeting(a, b, at), f"seed {seed}"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "", None),
        ("abc", "abc", (0, 0)),
        ("ab", "ab", None),
        ("abc", "", None),
        ("xabc", "abc", (1, 0)),
        ("abc", "xyabc", (0, 2)),
        ("xabc", "yabd", None),
        ("xabab", "yaabab", (2, 3)),
        ("aaaaa", "xaaaa", (1, 1)),
        ("xaaab", "yyaaab", (1, 2)),
        ("xaab", "aaab", (1, 1)),
        ("abcdef", "defabc", (0, 3)),
        ("abcdef", "__defabc", (3, 2)),
        ("abc__def", "def_abc", (0, 4)),
        ("__abcdef", "def___abc", (5, 0)),
        ("abc0123456789ABdef", "defCDEFGHIJKLMNabc", (0, 15)),
    ],
)
def test_three_equal_steps_are_needed(a: str, b: str, expected: tuple[int, int] | None) -> None:
    assert Alignment(letters(a), letters(b)).next_equal(0, 0) == expected
    before = "pqrstuvw"
    later = expected and (expected[0] + len(before), expected[1] + len(before))
    aligned = Alignment(letters(before + a), letters(before + b))
    assert aligned.next_equal(len(before), len(before)) == later


REQUESTS = [a_request(name) for name in "uvwxyz"]


def test_steps_are_given_with_the_numbers_of_the_first_run() -> None:
    a = a_run([], [a_request(name) for name in "xyz"])
    b = a_run([], [a_request(name) for name in "znyx"])
    aligned = Alignment(a, b)
    one = NO_DECISION._replace(
        arrived=(0, 1),
        ended=((0, "E"), (2, "E"), (3, "F")),
        preempted=((1, None, "swap"), (2, 0, "recompute")),
        admitted=((3, 5), (1, 0)),
        chunks=((3, 7), (0, 8)),
        decodes=(2, 1),
        waits=((1, "no_blocks", 4),),
    )
    assert aligned.of_b(one) == NO_DECISION._replace(
        arrived=(2, 4),
        ended=((0, "F"), (1, "E"), (2, "E")),
        preempted=((4, None, "swap"), (1, 2, "recompute")),
        admitted=((0, 5), (4, 0)),
        chunks=((0, 7), (2, 8)),
        decodes=(1, 4),
        waits=((4, "no_blocks", 4),),
    )
    assert [aligned.name(number) for number in (0, 1, 2, 4)] == ["x", "y", "z", "n"]
    assert [aligned.is_in_both(number) for number in (0, 1, 2, 4)] == [True, True, True, False]
    assert Alignment(a, a_run([], [a_request("n")])).name(3) == "n"
    same = Alignment(a, a)
    assert same.of_b(one) is one


def test_four_names_are_given_and_the_number_of_the_others() -> None:
    run = a_run([], REQUESTS)
    names = [Alignment(run, run).names(range(count)) for count in (0, 1, 4, 5, 6)]
    assert names == ["none", "u", "u, v, w, x", "u, v, w, x and 1 more", "u, v, w, x and 2 more"]


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        ([a_request("x"), a_request("new", 9, 9), a_request("y")], None),
        ([a_request("x", 9, 9), a_request("y")], None),
        ([a_request("x"), a_request("y", 4)], ("num_prompt_tokens", 3, 4)),
        ([a_request("x"), a_request("y", priority=1)], ("priority", 0, 1)),
        ([a_request("x"), a_request("y", 4, 1)], ("num_prompt_tokens", 3, 4)),
        ([a_request("x")], None),
    ],
)
def test_another_request_makes_the_steps_before_which_it_arrives_differ(
    other: list[RunRequest], changed: tuple[str, int, int] | None
) -> None:
    """The one that arrives is the second of the first run."""
    steps = [NO_DECISION, NO_DECISION._replace(arrived=(1,)), NO_DECISION]
    numbers = [number for number, request in enumerate(other) if request.request_id == "y"]
    of_b = [NO_DECISION, NO_DECISION._replace(arrived=(*numbers,)), NO_DECISION]
    a, b = a_run(steps, [a_request("x"), a_request("y")]), a_run(of_b, other)
    aligned = Alignment(a, b)
    assert aligned.find_changed(1) == changed
    is_same = bool(numbers) and changed is None
    assert [aligned.is_equal(number, number) for number in range(3)] == [True, is_same, True]
    assert aligned.num_equal(0, 0) == (3 if is_same else 1)
    ignoring = Alignment(a, b, ["arrivals"])
    assert ignoring.num_equal(0, 0) == 3
    assert ignoring.is_equal(1, 1)
