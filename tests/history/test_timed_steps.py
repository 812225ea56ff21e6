"""The times and sizes of steps, the inputs before them, and the times between their tokens."""

from array import array

import pytest

from seqtop.history import token_gaps as token_gaps_module
from seqtop.history.replay import Replay
from seqtop.history.timed_steps import TimedSteps
from seqtop.history.token_gaps import token_gaps
from tests.support.events import arrival, engine_info, stats, step, update
from tests.support.scripted import ScriptedSource


def test_steps_have_their_inputs_and_the_time_that_only_they_took() -> None:
    """The second one begins before the first has ended; a gap follows the fourth one."""
    source = ScriptedSource(
        engine_info(),
        arrival(1),
        arrival(2),
        step(0, stats=stats(num_running=2, num_prefill_tokens=6)),
        step(1, start_time=100.25, time=101.5, stats=stats(num_waiting=1)),
        arrival(3),
        step(2, stats=stats(num_swapped=1, num_decode_tokens=2)),
        step(3),
        arrival(4),
    )
    source.replace(source.state, num_missed=2)
    source.apply(step(9, start_time=110.0, time=110.25))
    reader = TimedSteps()
    Replay(source.history, [reader]).run()
    reader.end()
    steps = reader.steps
    assert reader.info == source.state.info
    assert [own.arrived for own in steps] == [["req-1", "req-2"], [], ["req-3"], [], []]
    assert [own.first_joined_at for own in steps] == [1.0, None, 3.0, None, None]
    assert [own.seconds for own in steps] == [0.5, 1.0, 0.5, 0.5, 0.25]
    assert [own.is_idle_after for own in steps] == [False, False, False, True, True]
    assert [own.is_last for own in steps] == [False, False, False, True, True]
    assert [own.num_prefill_tokens for own in steps] == [6, 0, 0, 0, 0]
    assert [own.num_decode_tokens for own in steps] == [0, 0, 2, 0, 0]


@pytest.mark.parametrize(
    ("since", "until", "most", "gaps"),
    [
        (0.0, 200.0, 100, {101.5: [0.5, 0.5], 102.5: [1.0], 103.5: [2.0]}),
        (100.6, 200.0, 100, {102.5: [1.0], 103.5: [2.0]}),
        (101.6, 200.0, 100, {}),
        (0.0, 103.4, 100, {101.5: [0.5, 0.5], 102.5: [1.0]}),
        (0.0, 200.0, 5, {102.5: [1.0], 103.5: [2.0]}),
        (0.0, 200.0, 4, {}),
    ],
)
def test_the_times_between_the_tokens_of_a_part(
    monkeypatch: pytest.MonkeyPatch,
    since: float,
    until: float,
    most: int,
    gaps: dict[float, list[float]],
) -> None:
    """Those from before it are unknown, and those across a gap in the recording."""
    monkeypatch.setattr(token_gaps_module, "_MAX_EVENTS", most)
    source = ScriptedSource(
        engine_info(),
        arrival(1),
        arrival(2),
        step(0, sequences=[update(1, tokens=[1])]),
        step(1, sequences=[update(1, tokens=[2, 3]), update(2, tokens=[4])]),
        step(2, sequences=[update(2, tokens=[5]), update(1)]),
        step(3, sequences=[update(1, tokens=[6])]),
    )
    source.replace(source.state)
    source.apply(step(4, sequences=[update(1, tokens=[7])]))
    ends, seconds = token_gaps(source.history, since, until)
    assert seconds == array("d", [gap for own in gaps.values() for gap in own])
    assert ends == array("d", [end for end, own in gaps.items() for _ in own])
