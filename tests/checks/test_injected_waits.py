"""Injected bugs on waits, tables, figures and waste are found, and named by their rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seqtop.wire.messages import Event
from tests.support import field_cases
from tests.support.injected_waits import BUGS, Bug
from tests.support.mutants import check


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_found_and_named(bug: Bug) -> None:
    findings = [finding for finding in check(bug.run()) if finding.rule == bug.rule]
    assert findings
    if bug.request is not None:
        assert findings[0].request_id == bug.request
    for word in bug.words:
        assert any(word in finding.message for finding in findings)


@pytest.mark.parametrize(
    "control",
    [
        field_cases.healthy,
        field_cases.ended_requests_free_blocks,
        field_cases.healthy_load,
        lambda: field_cases.window_table(is_stale=False),
    ],
)
def test_nothing_is_found_in_a_healthy_engine(control: Callable[[], list[Event]]) -> None:
    assert check(control()) == []
