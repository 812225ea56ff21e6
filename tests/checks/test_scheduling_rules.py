"""Rules about scheduling: each finds a run that is broken in just its way."""

from collections.abc import Callable

import pytest

from seqtop.wire.messages import Event
from tests.support.mutants import SCHEDULING_MUTANTS, assert_found


@pytest.mark.parametrize(("rule", "mutate"), SCHEDULING_MUTANTS)
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]
) -> None:
    assert_found(payloads, rule, mutate)
