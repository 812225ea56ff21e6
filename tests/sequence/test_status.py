"""Statuses and stages."""

from collections.abc import Callable
from typing import Any

import pytest

from seqtop.sequence import (
    Sequence,
    SequenceStage,
    SequenceStatus,
    token_inputs,
)


def sequence(prompt: list[int] | None = None, **options: Any) -> Sequence:
    return Sequence(0, token_inputs(prompt or [1, 2, 3], "one two three"), 4, **options)


FINISHED = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_IGNORED: "length",
}


@pytest.mark.parametrize("status", SequenceStatus)
def test_status(status: SequenceStatus) -> None:
    assert SequenceStatus.is_finished(status) == (status in FINISHED)
    assert SequenceStatus.get_finished_reason(status) == FINISHED.get(status)
    seq = sequence()
    seq.status = status
    assert seq.is_finished() == (status in FINISHED)


def test_stages_are_no_integers() -> None:
    stage: Any = SequenceStage.PREFILL
    assert stage != 1
    as_int: Callable[[Any], int] = int
    with pytest.raises(TypeError):
        as_int(stage)
