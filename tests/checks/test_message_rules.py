"""Rules about single messages: each finds a run that is broken in just its way."""

from collections.abc import Callable

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.wire.messages import Event
from tests.support.events import arrival, engine_info, step, update
from tests.support.mutants import MESSAGE_MUTANTS, assert_found, check


@pytest.mark.parametrize(("rule", "mutate"), MESSAGE_MUTANTS)
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]
) -> None:
    assert_found(payloads, rule, mutate)


@pytest.mark.parametrize(
    ("seq_id", "token", "messages"),
    [
        (0, 0, []),
        (2**63 - 1, 2**31 - 1, []),
        (-1, 5, ["sequence id -1 is not between"]),
        (1, -1, ["token id -1 is not between"]),
    ],
)
def test_ids_begin_with_zero(seq_id: int, token: int, messages: list[str]) -> None:
    arrived = arrival(1)
    arrived.seq_ids = [max(seq_id, 0)]
    grows = update(seq_id, SequenceStatus.RUNNING, tokens=[token])
    found = check([engine_info(), arrived, step(0, sequences=[grows])])
    ids = [finding.message for finding in found if finding.rule == "id-range"]
    assert [message.partition(" 0 and")[0] for message in ids] == messages
