"""Two moments of a run, and what differs between them."""

from collections.abc import Sequence

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state import compare as comparing
from seqtop.state.compare import Rate, StateComparison, compare
from seqtop.state.freeze import freeze
from seqtop.text import format as fmt
from seqtop.wire.messages import MissCause, PrefixMiss
from tests.support import events
from tests.support.events import preemption
from tests.support.reducer_events import step
from tests.support.scripted import Script, ScriptedSource, engine_info
from tests.support.simulated_engine import START


def describe(
    comparison: StateComparison, rates: Sequence[tuple[str, Rate, Rate]] = ()
) -> list[str]:
    """The lines of a comparison behind the verdict."""
    lines = [line.text for line in comparing.describe(comparison, rates)]
    return lines[lines.index("") + 1 :] if comparison.same_incarnation else lines


def two_moments() -> tuple[ScriptedSource, Script]:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("stays")
    script.arrive("ends")
    script.arrive("waits")
    script.step(prefill={"stays": 40, "ends": 40})
    return source, script


def test_requests_that_came_ended_and_changed_are_told() -> None:
    source, script = two_moments()
    before = freeze(source.state)
    script.step()
    script.arrive("comes")
    for _ in range(20):
        script.step(decode=["stays"])
    script.step(stop={"ends": SequenceStatus.FINISHED_STOPPED})
    script.step(preempt={"stays": "comes"})
    comparison = compare(before, source.state)
    assert comparison == compare(source.state, before), "the earlier moment is A"
    assert comparison.steps == (0, 23)
    assert comparison.came == ["comes"]
    assert [(request.request_id, request.reason) for request in comparison.ended] == [
        ("ends", "stop")
    ]
    [changed] = comparison.changed
    assert (changed.name, changed.status_before, changed.status_after) == (
        "stays", "running", "preempt",
    )  # fmt: skip
    assert (changed.output_tokens, changed.blocks, changed.preemptions) == (22, -3, 1)
    assert comparison.num_unchanged == 1
    assert (comparison.blocks_taken, comparison.blocks_released) == (0, 6)
    text = describe(comparison)
    assert text[0].startswith("A: step 0, ")
    assert text[1].startswith("B: step 23, ")
    assert text[1].endswith(", 1.15 s later")
    assert (
        "\n".join(text[2:])
        == """
Figures:                            A    B  B - A
  running                           2    0     -2
  waiting                           1    3     +2
  swapped                           0    0      0
  used blocks                       6    0     -6
  cached blocks                     0    5     +5
  free blocks                     250  251     +1
Totals since the engine's start:
  finished requests                 0    1     +1
  prompt tokens                    80   80      0
  output tokens                     2   26    +24
  preemptions                       0    1     +1
  prefix queries, tokens           80   80      0
  prefix hits, tokens               0    0      0

Arrived: 1
  comes

Ended: 1
  stop: ends

Changed: 1
  stays  running → preempt, +22 output tokens, -3 blocks, preempted to make room for comes

Unchanged: 1 unfinished sequence
Blocks: 0 taken, 6 released, 0 with other owners"""
    )


def test_sequences_that_were_preempted_or_computed_have_changed() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("pair", n=2)
    script.arrive("long", num_prompt=2000)
    script.step(prefill={"pair": 40, "long": 100})
    lost = preemption("pair", by="pair")

    def changed(number: int) -> list[str]:
        before = freeze(source.state)
        for _ in range(number):
            script.number += 1
            source.apply(step(script.number, preemptions=[lost]))
        script.step(prefill={"long": 400}, decode=[])
        text = describe(compare(before, source.state))
        begin = text.index("Changed: 3" if number else "Changed: 1") + 1
        return text[begin : text.index("", begin)]

    cause = "because no blocks were free for it"
    long = "  long  running, +25 blocks, +400 computed tokens"
    pairs = ["  pair/1  running, preempted", "  pair/2  running, preempted"]
    assert changed(1) == [*(f"{pair} {cause}" for pair in pairs), long]
    assert changed(2) == [*(f"{pair} 2 times {cause}" for pair in pairs), long]
    assert changed(0) == [long]


def test_a_block_with_another_owner() -> None:
    source, script = two_moments()
    before = freeze(source.state)
    script.finish("ends", SequenceStatus.FINISHED_ABORTED)
    script.step(prefill={"waits": 40})
    comparison = compare(before, source.state)
    assert (
        comparison.blocks_taken,
        comparison.blocks_released,
        comparison.blocks_with_other_owners,
    ) == (0, 0, 3)


def test_one_moment_is_the_same_as_itself() -> None:
    source, _ = two_moments()
    comparison = compare(source.state, freeze(source.state))
    assert (comparison.came, comparison.ended, comparison.changed, comparison.num_unchanged) == (
        [],
        [],
        [],
        3,
    )
    text = describe(comparison)
    first = next(number for number, line in enumerate(text) if line.startswith("  prefix hits"))
    assert text[first + 1 :] == [
        "",
        "Unchanged: 3 unfinished sequences",
        "Blocks: 0 taken, 0 released, 0 with other owners",
    ]


def test_moments_of_different_runs_have_only_figures_to_compare() -> None:
    source, _ = two_moments()
    other = ScriptedSource()
    script = Script(other, incarnation="b2")
    script.arrive("stays")
    script.step(prefill={"stays": 40})
    comparison = compare(source.state, other.state)
    assert not comparison.same_incarnation
    assert (comparison.came, comparison.ended, comparison.changed) == ([], [], [])
    assert (comparison.num_unchanged, comparison.blocks_taken, comparison.blocks_released) == (
        0,
        0,
        0,
    )
    assert comparison.blocks_with_other_owners == 0
    assert describe(comparison)[-2:] == [
        "",
        "The engine was restarted in between: its requests are others.",
    ]


def test_a_figure_that_one_moment_lacks_has_no_difference() -> None:
    source, _ = two_moments()
    for time, figures in ((START + 99.0, ["6", fmt.UNKNOWN]), (START - 99.0, [fmt.UNKNOWN, "6"])):
        without_steps = EngineState(info=engine_info(incarnation="b2"), time=time)
        rows = [line.split() for line in describe(compare(source.state, without_steps))]
        assert ["used", "blocks", *figures, fmt.UNKNOWN] in rows


def test_a_crowd_is_counted_and_a_request_that_was_dropped_has_ended() -> None:
    source = ScriptedSource(max_finished=4)
    script = Script(source)
    before = freeze(source.state)
    script.arrive("dropped")
    first = freeze(source.state)
    script.finish("dropped", SequenceStatus.FINISHED_ABORTED)
    for number in range(100):
        script.arrive(f"crowd-{number}")
        if number < 10:
            script.finish(f"crowd-{number}", SequenceStatus.FINISHED_ABORTED)
    text = describe(compare(before, source.state))
    begin = text.index("Arrived: 94")
    ids = text[begin + 1 : text.index("", begin)]
    assert len(ids) < 10, "several in a line"
    assert " ".join("".join(ids).split()).endswith("crowd-54, crowd-55 and 44 more")
    gone = compare(first, source.state).ended[0]
    assert (gone.request_id, gone.reason) == ("dropped", None)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [(10.0, 7.5, "-2.5"), (7.5, 10.0, "+2.5"), (7.5, 7.5, "0"), (None, 7.5, fmt.UNKNOWN)],
)
def test_rates_have_a_change(before: float | None, after: float, change: str) -> None:
    source, _ = two_moments()
    rates = [("tok/s", Rate(before, fmt.rate), Rate(after, fmt.rate))]
    (line,) = (
        line for line in describe(compare(source.state, source.state), rates) if "tok/s" in line
    )
    assert line.split()[1:] == [fmt.rate(before), fmt.rate(after), change]


def test_the_verdict_has_the_largest_changes_and_their_signs() -> None:
    source, script = two_moments()
    before = freeze(source.state)
    script.finish("ends", SequenceStatus.FINISHED_STOPPED)
    rates = [
        ("tok/s", Rate(10.0, fmt.rate, 1), Rate(5.0, fmt.rate, 1)),
        ("TTFT", Rate(1.0, fmt.seconds, -1), Rate(3.0, fmt.seconds, -1, is_least=True)),
        ("ITL", Rate(1.0, fmt.seconds, -1), Rate(0.9, fmt.seconds, -1)),
        ("steps/s", Rate(1.0, fmt.rate, 1), Rate(0.0, fmt.rate, 1)),
    ]
    lines = comparing.describe(compare(before, source.state), rates)
    text = [line.text for line in lines]
    verdict = " ".join(text[: text.index("")])
    assert verdict == (
        "1 request ended and 0 arrived in between; 1 waited at A, 1 at B; tok/s -50% (10.0 → 5.0);"
        " TTFT +200% (1.00 s → ≥3.00 s)."
    )
    better = {line.text.split()[0]: line.is_better for line in lines if line.is_better is not None}
    assert better == {"tok/s": False, "TTFT": False, "ITL": True, "steps/s": False}
    worse = ("TTFT", Rate(1.0, fmt.seconds, -1), Rate(0.5, fmt.seconds, -1, is_least=True))
    assert all(
        line.is_better is None
        for line in comparing.describe(compare(before, source.state), [worse])
    )


@pytest.mark.parametrize(
    ("after", "part"),
    [(0.25, "TTFT -50% (500 ms → 250 ms)"), (0.75, "TTFT +50% (500 ms → 750 ms)"), (0.5, "")],
)
def test_the_verdict_has_a_change_of_parts_of_a_second(after: float, part: str) -> None:
    state = two_moments()[0].state
    rates = [("TTFT", Rate(0.5, fmt.seconds, -1), Rate(after, fmt.seconds, -1))]
    lines = [line.text for line in comparing.describe(compare(state, state), rates)]
    verdict = " ".join(lines[: lines.index("")])
    text = "0 requests ended and 0 arrived in between; 1 waited at A, 1 at B"
    assert verdict == "; ".join(filter(None, (text, part))) + "."


def test_prefix_misses_are_compared_by_cause() -> None:
    source, _ = two_moments()
    before = freeze(source.state)
    causes: tuple[MissCause, ...] = ("evicted", "new_tokens", "broken_prefix", "evicted")
    for number, cause in enumerate(causes):
        update = events.update(
            1,
            SequenceStatus.RUNNING,
            1,
            prefix_misses=[PrefixMiss(cause=cause, num_tokens=16 + number)],
        )
        source.apply(step(100 + number, sequences=[update]))
    whole = describe(compare(before, source.state))
    assert "  missed tokens: behind missing ones    0  18    +18" in whole
    text = [line.split() for line in whole]
    assert ["missed", "tokens:", "evicted", "0", "35", "+35"] in text
    assert ["missed", "tokens:", "new", "0", "17", "+17"] in text
    assert [] in text[: text.index(["Changed:", "1"])]
    assert before.num_missed_tokens == {}, "a frozen state does not change"
    restarted = ScriptedSource()
    script = Script(restarted, incarnation="b2")
    script.time += 1_000.0
    script.step()
    text = [line.split() for line in describe(compare(source.state, restarted.state))]
    assert ["missed", "tokens:", "evicted", "35", "0", "-35"] in text
