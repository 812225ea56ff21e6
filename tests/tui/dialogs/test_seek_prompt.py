"""Answers to the prompt for a step or a time, and the moment that each leads to."""

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import Timeline
from seqtop.tui.dialogs.seek_prompt import EXAMPLES, SeekTarget, parse
from tests.support.scripted import ScriptedSource, scene
from tests.support.simulated_engine import START


@pytest.fixture
def timeline() -> Timeline:
    source = ScriptedSource()
    scene(source, hostile="?")
    return source.history


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("17", SeekTarget(step=17)),
        ("1,234", SeekTarget(step=1234)),
        ("12.5s", SeekTarget(since=12.5)),
        (" 500 ms ", SeekTarget(since=0.5)),
        ("1m30s", SeekTarget(since=90.0)),
        ("2h", SeekTarget(since=7200.0)),
        ("-3s", SeekTarget(shift=-3.0)),
        ("+250ms", SeekTarget(shift=0.25)),
        ("14:03", SeekTarget(clock=50_580.0)),
        ("14:03:22.5", SeekTarget(clock=50_602.5)),
    ],
)
def test_typed_moments_are_understood(text: str, expected: SeekTarget) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["", "s", "-3", "1..2s", "25:00", "1:60", "12:00:61", "3x"])
def test_other_words_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="Type a step or a time: 1234"):
        parse(text)


def test_every_example_is_understood() -> None:
    wanted = [parse(example) for example, _ in EXAMPLES]
    assert wanted == [
        SeekTarget(step=1234),
        SeekTarget(since=12.5),
        SeekTarget(shift=-3.0),
        SeekTarget(clock=50_602.0),
    ]


def test_times_lead_to_the_last_moment_before_them(timeline: Timeline) -> None:
    marks = timeline.index
    here = marks.at_step(20)

    def at(text: str) -> tuple[float, str]:
        position, remark = parse(text).find(timeline, here)
        assert position is not None
        return marks[position].time, remark

    assert at("1s") == (marks[marks.at_time(START + 1.0)].time, "")
    now = marks[here].time
    time, remark = at("-500ms")
    assert now - 0.5 - 0.06 < time <= now - 0.5
    assert remark == ""
    assert at("+100ms")[0] == pytest.approx(now + 0.1, abs=0.06)
    # The script begins at 22:13:20 UTC.
    assert at("22:13:21") == (marks[marks.at_time(START + 1.0)].time, "")
    assert at("0s")[1] == ""
    assert at("1h") == (
        marks[marks.last].time,
        "The history ends earlier: this is its last moment.",
    )
    assert at("-1h") == (START, "The history starts later: this is its first moment.")
    assert at("9999")[1] == "Step 9,999 is not in the history; this is the nearest."


def test_a_clock_that_no_calendar_knows_is_said() -> None:
    history = MemoryStore()
    source = ScriptedSource(history=history)
    scene(source, hostile="?", start_time=1e300)
    position, remark = parse("14:03").find(history, history.last)
    assert position is None
    assert remark == "The engine's clock has no time of day."
