"""Rules about the lifecycle of sequences: each finds a run that is broken in just its way."""

from collections.abc import Callable

import pytest

from seqtop.wire.messages import Event
from tests.support.mutants import LIFECYCLE_MUTANTS, assert_found


@pytest.mark.parametrize(("rule", "mutate"), LIFECYCLE_MUTANTS)
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]
) -> None:
    assert_found(payloads, rule, mutate)
