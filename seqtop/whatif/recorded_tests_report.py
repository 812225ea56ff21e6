"""The results of recordings as tests, as text, as JSON and as JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from seqtop.text import format as fmt
from seqtop.text.junit import Case, Suite, junit
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain, table
from seqtop.whatif.proof import Proof, difference_lines
from seqtop.whatif.recorded_tests import Coverage, Outcome, RecordedTest, RecordedTests

_MAX_REFUSED = 4
"""Refused requests that are named."""
_NOT_TESTED: tuple[Outcome, ...] = ("not replayed", "unreadable")


def as_text(tests: RecordedTests) -> str:
    """Returns a table of the recordings, what differs in each, and the kinds of decisions."""
    rows = [("recording", "outcome", "steps equal", "requests"), *map(_row, tests.recordings)]
    lines = table(rows, left=(0, 1))
    for test in tests.recordings:
        if details := [*_details(test)]:
            lines += ["", f"{test.path}:", *details]
    covered = [own for own in tests.decisions if own.count]
    if tests.decisions:
        lines += [
            "",
            *table([("decision", "times", "recordings", ""), *map(_covered, covered)], (0, -1)),
        ]
        missing = [own for own in tests.decisions if not own.count]
        lines += ["", *_missing(missing)]
    return plain([*lines, "", _summary(tests)])


class RecordedTestsDocument(RecordedTests, kw_only=True):
    """The results of recordings as tests, as JSON."""

    is_equal: bool
    """True if every recording came out again."""


def as_json(tests: RecordedTests) -> str:
    """Returns the results as indented JSON."""
    is_equal = all(test.outcome == "equal" for test in tests.recordings)
    return indented_json(RecordedTestsDocument(is_equal=is_equal, **msgspec.structs.asdict(tests)))


def as_junit(tests: RecordedTests) -> str:
    """Returns the results as JUnit XML: a test case for each recording."""
    return junit(Suite("seqtop test", [_case(test) for test in tests.recordings]))


def _row(test: RecordedTest) -> tuple[str, ...]:
    if (proof := test.proof) is None:
        return test.path, test.outcome
    steps = f"{proof.num_equal_steps:,} of {proof.num_steps:,}"
    return test.path, test.outcome, steps, f"{test.num_requests:,}"


def _details(test: RecordedTest) -> Iterator[str]:
    """Yields lines on what differs, has failed, or could not be replayed."""
    proof = test.proof
    if proof is not None and proof.repeated_by:
        yield f"  repeated by {proof.repeated_by}"
    if proof is not None and not (test.outcome == "failed" and _ends_early(proof)):
        yield from difference_lines(proof)
    if test.problem:
        where = _place(proof) if proof is not None and test.outcome == "failed" else ""
        yield f"  {where}{test.problem}"
    if test.outcome == "different":
        for request_id, reason in islice(test.refused.items(), _MAX_REFUSED):
            yield f"  the scheduler refused {request_id}: {reason}"
        if (more := len(test.refused) - _MAX_REFUSED) > 0:
            yield f"  the scheduler refused {fmt.plural(more, 'more request')}"


def _ends_early(proof: Proof) -> bool:
    """Returns True if the repeated run only ends before the recorded one."""
    first = proof.first_difference
    return first is None or first.kind == "length"


def _place(proof: Proof) -> str:
    """Returns the step in which a scheduler has failed; empty if decisions differ before."""
    first = proof.first_difference
    if first is None or first.kind != "length":
        return ""
    return f"step {first.step_a:,}: "


def _covered(own: Coverage) -> tuple[str, ...]:
    return own.title, f"{own.count:,}", f"{own.num_recordings:,}", own.meaning


def _missing(missing: list[Coverage]) -> list[str]:
    if not missing:
        return ["the recordings have all kinds of decisions"]
    return [f"not in the recordings: {', '.join(own.title for own in missing)}"]


def _summary(tests: RecordedTests) -> str:
    equal = len(tests.with_outcome("equal"))
    parts = [f"{equal:,} of {fmt.plural(len(tests.recordings), 'recording')} equal"]
    outcomes: tuple[Outcome, ...] = ("different", "failed", *_NOT_TESTED)
    parts += [
        f"{len(found):,} {outcome}"
        for outcome in outcomes
        if (found := tests.with_outcome(outcome))
    ]
    return ", ".join(parts)


def _case(test: RecordedTest) -> Case:
    case = Case(classname="recording", name=test.path)
    details = plain(line.strip() for line in _details(test))
    if test.outcome in _NOT_TESTED:
        case.error = f"{test.outcome}: {test.problem}"
    elif test.outcome != "equal":
        proof = test.proof
        case.failure_type, case.details = test.outcome, details
        case.failure = test.problem
        if test.outcome == "different" and proof is not None:
            case.failure = (
                f"{proof.num_equal_steps:,} of {fmt.plural(proof.num_steps, 'step')} equal"
            )
    return case
