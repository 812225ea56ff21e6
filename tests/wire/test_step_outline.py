"""The figures of a step are read without its sequences."""

import pytest

from seqtop.wire import codec, parsing
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Step
from seqtop.wire.parsing import step_outline
from tests.support.recordings import encoded


def test_the_outline_of_an_event_is_that_of_its_step() -> None:
    num_steps = 0
    for payload in encoded(5, 80, num_blocks=24):
        event, outline = parsing.event(payload), step_outline(payload)
        if not isinstance(event, Step):
            assert outline is None
            continue
        num_steps += 1
        assert outline is not None
        assert (outline.step, outline.start_time, outline.time, outline.stats) == (
            event.step, event.start_time, event.time, event.stats,
        )  # fmt: skip
        assert len(outline.preemptions) == len(event.preemptions)
    assert num_steps == 80


def test_something_that_only_begins_like_a_step_is_refused() -> None:
    with pytest.raises(WireError, match="StepOutline"):
        step_outline(codec.encode(["Step", 3, "soon"]))
    assert step_outline(b"") is None
