"""The words and figures of headlines, from intervals that are written by hand."""

import math
from collections import Counter
from typing import Any, Literal

import pytest

from seqtop.explain.headlines import (
    Change,
    Observed,
    change_shares,
    compare,
    find_changes,
    headline,
    observe,
)
from seqtop.history.memory_store import MemoryStore
from seqtop.history.step_series import Interval, StepSeries
from seqtop.state.step_costs import TIME_PARTS
from seqtop.wire.messages import CudaGraph, WaitCause
from seqtop.wire.snapshot import StepCosts
from tests.support import events
from tests.support.events import arrival, full, preemption, update, wait_reason
from tests.support.scripted import Script, ScriptedSource

GRAPH = CudaGraph(mode="FULL", num_tokens=6, num_padded_tokens=8)
EAGER = CudaGraph(mode="NONE", num_tokens=7, num_padded_tokens=7)


def interval(
    seconds: float = 10.0,
    steps: float = 100.0,
    generated: float = 400.0,
    gauges: dict[str, float] | None = None,
    **sums: float,
) -> Interval:
    """Returns an interval in which, by default, 100 steps generated 4 tokens each."""
    empty = dict.fromkeys(("prefill", "decode", "preemptions", *TIME_PARTS), 0.0)
    return Interval(seconds, empty | {"steps": steps, "generated": generated} | sums, gauges or {})


def slower(**sums: float) -> Interval:
    """Returns an interval of half as many steps of the same size."""
    return interval(steps=50.0, generated=200.0, gauges=None, **sums)


def words(
    direction: Literal["fell", "rose"], before: Interval, after: Interval, **observed: Any
) -> str:
    """Returns the headline without the rates and the share of the change."""
    text = headline(Change(1.0, direction, before, after), Observed(**observed))
    return (
        text.partition("tok/s: ")[2]
        .removesuffix(".")
        .removesuffix("; this makes 100% of the change")
    )


LONG = {"prefills": Counter(long=1_050, other=60), "num_chunks": Counter(long=2, other=1)}
ALONE = {"prefills": Counter(long=50), "num_chunks": Counter(long=1)}
FULL_BATCH, SMALL_BATCH = interval(), interval(generated=100)


@pytest.mark.parametrize(
    ("after", "observed", "expected"),
    [
        (interval(steps=0, generated=0), LONG, "no step ended"),
        (interval(generated=0), {}, "no step generated a token"),
        (
            interval(generated=0),
            LONG,
            (
                "no step generated a token; 2 prefill chunks of long (1,050 tokens, and those of 1"
                " more)"
            ),
        ),
        (
            interval(generated=0),
            ALONE,
            "no step generated a token; 1 prefill chunk of long (50 tokens)",
        ),
        (
            slower(scheduler=1.25, forward=1.25, execute=1.25, rest=1.25),
            {},
            "cause not observed",
        ),
        (slower(), {}, "cause not observed"),
    ],
)
def test_a_change_without_a_cause(after: Interval, observed: dict[str, Any], expected: str) -> None:
    assert words("fell", FULL_BATCH, after, **observed) == expected


def test_a_first_output_has_no_share() -> None:
    change = Change(1.0, "rose", interval(generated=0), FULL_BATCH)
    assert headline(change, Observed()) == (
        "Output rose from 0.0 to 40.0 tok/s: nothing had been generated before."
    )


@pytest.mark.parametrize(
    ("before", "after", "observed", "expected"),
    [
        ({}, {}, {"preemption": preemption("r3"), "num_preemptions": 1}, "r3 was preempted"),
        (
            {},
            {},
            {"preemption": preemption("r3", by="r0"), "num_preemptions": 3} | LONG,
            "r3 was preempted for r0 and 2 more",
        ),
        (
            {"prefill": 80.0},
            {"prefill": 101.0},
            LONG,
            "2 prefill chunks of long (1,050 tokens, and those of 1 more)",
        ),
        ({"prefill": 80.0}, {"prefill": 100.0}, LONG, "cause not observed"),
        ({"running": 4.0}, {"running": 4.0}, {}, "cause not observed"),
        ({"running": 4.0}, {}, {}, "cause not observed"),
        ({}, {"running": 4.0}, {}, "cause not observed"),
        ({"running": 4.0}, {"running": 2.0}, {}, "2 sequences ran, 4 before, and none waited"),
        ({"running": 4.0}, {"running": 0.0}, {}, "0 sequences ran, 4 before, and none waited"),
        (
            {"running": 4.0},
            {"running": 1.0},
            {"waits": Counter(no_blocks=2, seq_limit=3), "holder": "a held 7 sequence slots"},
            "1 sequence ran, 4 before, and others waited (max_num_seqs; a held 7 sequence slots)",
        ),
        (
            {"running": 4.0},
            {"running": 4.0},
            {"waits": Counter(no_blocks=2)},
            "others waited (no free blocks)",
        ),
    ],
)
def test_fewer_tokens_a_step(
    before: dict[str, float], after: dict[str, float], observed: dict[str, Any], expected: str
) -> None:
    first, second = (
        interval(
            generated=generated,
            prefill=own.get("prefill", 0.0),
            gauges={name: own[name] for name in own if name != "prefill"},
        )
        for own, generated in ((before, 400), (after, 150))
    )
    text = words("fell", first, second, **observed)
    assert text == f"1.5 tokens a step, 4.0 before; {expected}"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"running": 0.0}, {"running": 4.0}, "4 sequences ran, 0 before"),
        ({"running": 1.0}, {"running": 1.0}, "cause not observed"),
        ({"running": 4.0}, {"running": 1.0}, "cause not observed"),
        ({}, {"running": 4.0}, "cause not observed"),
    ],
)
def test_more_tokens_a_step(
    before: dict[str, float], after: dict[str, float], expected: str
) -> None:
    """Neither waits nor prefills are a cause of it."""
    text = words(
        "rose",
        interval(generated=100, gauges=before),
        interval(prefill=50.0, gauges=after),
        waits=Counter(no_blocks=2),
        preemption=preemption("r3"),
        **LONG,
    )
    assert text == f"4.0 tokens a step, 1.0 before; {expected}"


@pytest.mark.parametrize(
    ("part", "title"),
    [
        ("scheduler", "the scheduler"),
        ("rest", "the rest of a step"),
        ("idle", "time without any request"),
    ],
)
def test_a_part_of_the_time_of_a_step(part: str, title: str) -> None:
    before, after = interval(), slower()
    before.sums[part], after.sums[part] = 5.0, 7.5
    assert words("fell", before, after, **LONG) == f"{title} took 150 ms a step, 50.0 ms before"


def test_the_share_of_one_cause_of_two() -> None:
    """A step takes 0.1 s longer: the forward pass 0.06 s, the scheduler 0.04 s."""
    before, after = interval(forward=5.0, scheduler=1.0), slower(forward=5.5, scheduler=2.5)
    text = headline(Change(1.0, "fell", before, after), Observed())
    assert text == (
        "Output fell from 40.0 to 20.0 tok/s: the forward pass took 110 ms a step, 50.0 ms before;"
        " what made it so was not observed; this makes 60% of the change."
    )
    both = change_shares(before, interval(steps=50.0, generated=100.0, forward=7.5))
    assert both == pytest.approx(
        {"batch": 0.5, "forward": 0.5, "scheduler": -0.05, "unknown": 0.05}
        | dict.fromkeys(("execute", "rest", "host", "paced", "idle"), 0.0)
    )
    assert list(both)[-1] == "scheduler"


def test_a_share_above_all_is_all() -> None:
    """Steps of 0.2 s instead of 0.1 s would be half of the output, but their batches grew."""
    before, after = interval(forward=10.0), interval(steps=50.0, generated=250.0, forward=10.0)
    assert change_shares(before, after)["forward"] == pytest.approx(1.47, rel=0.01)
    text = headline(Change(1.0, "fell", before, after), Observed())
    assert text.endswith("; this makes 100% of the change.")


def test_no_shares_without_steps_or_without_a_change() -> None:
    assert change_shares(FULL_BATCH, FULL_BATCH) == {}
    assert change_shares(interval(steps=0), SMALL_BATCH) == {}
    assert change_shares(FULL_BATCH, interval(generated=0)) == {}
    assert change_shares(FULL_BATCH, SMALL_BATCH) == {"batch": pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("direction", "before", "after", "observed", "expected"),
    [
        ("fell", 0.0, 100.0, LONG, "with 2 prefill chunks of long (1,050 tokens, and those of 1 m"),
        ("fell", 0.0, 100.0, {}, None),
        ("fell", 100.0, 50.0, LONG, "not observed"),
        ("fell", 100.0, 62.5, LONG, "not observed"),
        ("rose", 200.0, 100.0, LONG, "with 1.0 prefill tokens a step, 4.0 before"),
        ("rose", 63.0, 100.0, LONG, "with 1.0 prefill tokens a step, 1.3 before"),
        ("rose", 62.5, 100.0, LONG, "not observed"),
    ],
)
def test_prefills_with_an_execution_that_took_longer_or_less(
    direction: Literal["fell", "rose"],
    before: float,
    after: float,
    observed: dict[str, Any],
    expected: str | None,
) -> None:
    """Without costs, any prefills may explain it."""
    intervals = [interval(execute=5.0), slower(execute=7.5)]
    seconds = "took 150 ms a step, 50.0 ms before"
    if direction == "rose":
        intervals.reverse()
        seconds = "took 50.0 ms a step, 150 ms before"
    for own, prefill in zip(intervals, (before, after), strict=True):
        own.sums["prefill"] = prefill
    text = words(direction, *intervals, **observed)
    head = f"the model's execution beside the forward pass {seconds}"
    assert text.startswith(head)
    assert text == head if expected is None else expected in text


@pytest.mark.parametrize(("cost", "is_named"), [(0.3 / 16, True), (0.0187, False)])
@pytest.mark.parametrize("direction", ["fell", "rose"])
def test_prefills_are_named_if_they_cost_a_part_of_the_time(
    direction: Literal["fell", "rose"], cost: float, is_named: bool
) -> None:
    """Two prefill tokens a step or none, and an eighth of a second more or less."""
    intervals = [
        interval(20.0, forward=12.5),
        interval(20.0, 50.0, 200.0, forward=12.5, prefill=100.0),
    ]
    if direction == "rose":
        intervals.reverse()
    costs = StepCosts(per_step=0.05, per_prefill_token=cost)
    observed: dict[str, Any] = {"costs": costs, **LONG}
    text = words(direction, *intervals, **observed)
    assert ("prefill" in text) is is_named
    assert ("not observed" in text) is not is_named


@pytest.mark.parametrize(
    ("direction", "before", "now", "expected"),
    [
        ("fell", (0, 4), (2, 2), "without a CUDA graph for 15 tokens, with one before"),
        ("fell", (2, 2), (4, 0), ""),
        ("fell", (0, 4), (1, 3), ""),
        ("fell", (0, 0), (4, 0), ""),
        ("fell", (0, 4), (0, 0), ""),
        ("fell", (4, 0), (0, 4), ""),
        ("rose", (2, 2), (0, 4), "with a CUDA graph for 15 tokens, without one before"),
        ("rose", (4, 0), (2, 2), ""),
        ("rose", (1, 3), (0, 4), ""),
        ("rose", (0, 4), (4, 0), ""),
    ],
)
def test_steps_with_and_without_a_graph(
    direction: Literal["fell", "rose"], before: tuple[int, int], now: tuple[int, int], expected: str
) -> None:
    intervals = [interval(forward=5.0), slower(forward=7.5)]
    if direction == "rose":
        intervals.reverse()
    text = words(
        direction,
        *intervals,
        graphs_before=Counter({False: before[0], True: before[1]}),
        graphs=Counter({False: now[0], True: now[1]}),
        num_tokens=60,
    )
    assert text.endswith(
        f" before, {expected}" if expected else "; what made it so was not observed"
    )


def test_the_steps_of_a_change_are_observed() -> None:
    """Up to 64 after its beginning, and as many before it with a CUDA graph or without."""
    run: list[Any] = [events.engine_info(), arrival(1), arrival(2)]
    for number in range(200):
        stats = events.stats(
            cuda_graph=None if number % 2 else EAGER if number >= 100 else GRAPH, num_running=1
        )
        is_prompt = number in (110, 111)
        run.append(
            events.step(
                number,
                *([full("req-1", 1, chunk=number - 100)] if is_prompt else []),
                start_time=10.0 + number,
                time=11.0 + number,
                sequences=[update(1, computed=number - 100)] if is_prompt else [],
                preemptions=[preemption(f"req-{number % 2 + 1}", by="x")] * (number in (107, 190))
                + [preemption("req-1")] * (number in (107, 108)),
                wait_reasons=[wait_reason("req-2", "no_blocks" if number % 3 else "seq_limit")],
                stats=stats,
            )
        )
    store = ScriptedSource(*run).history
    change = Change(110.0, "fell", interval(seconds=50.0), interval(seconds=80.0))
    observed = observe(store, change)
    assert (observed.step, observed.preemption_step) == (100, 107)
    assert observed.preemption == preemption("req-2", by="x")
    assert observed.num_preemptions == 3
    assert observed.prefills == Counter({"req-1": 10 + 11})
    assert observed.num_chunks == Counter({"req-1": 2})
    assert observed.waits == Counter({"no_blocks": 43, "seq_limit": 21})
    assert observed.graphs == Counter({False: 32})
    assert observed.num_tokens == 32 * 7
    assert observed.graphs_before == Counter({True: 25})
    assert observed.costs == store.at(store.first + 3 + 163).step_costs
    longer = observe(store, Change(170.0, "fell", interval(seconds=160.0), interval(seconds=9.5)))
    assert longer.graphs_before == Counter({True: 50, False: 14})
    assert longer.graphs == Counter({False: 5})
    assert longer.step == 160


def series_of(
    *blocks: tuple[int, int], waiting: tuple[int, ...] = (), pause: float = 0.0
) -> StepSeries:
    """Returns the series of a step each 2 s: in each block a number of them, of so many tokens.

    The engine pauses between them.
    """
    series, number = StepSeries(MemoryStore()), 0
    for index, (count, tokens) in enumerate(blocks):
        for _ in range(count):
            start = 1_024.0 + 2.0 * number
            step = events.step(
                number,
                start_time=start + pause,
                sequences=[update(1, tokens=range(tokens))],
                stats=events.stats(
                    num_running=1,
                    num_waiting=waiting[index] if waiting else 0,
                    scheduler_time=0.0,
                    model_forward_time=1.5,
                    model_execute_time=1.5,
                ),
            )
            series.add(step, start + 2.0)
            number += 1
    return series


@pytest.mark.parametrize(
    ("cause", "holder"),
    [
        ("no_blocks", "first held 3 blocks"),
        ("seq_limit", "first held 1 sequence slot"),
        ("paused", ""),
    ],
)
def test_the_largest_holder_of_what_others_wait_for(cause: WaitCause, holder: str) -> None:
    script = Script(ScriptedSource())
    for name in ("late", "first", "second"):
        script.arrive(name)
    script.step(prefill={"first": 40, "second": 20})
    script.step(waits=[wait_reason("late", cause)])
    change = Change(script.time - 0.05, "fell", interval(), interval(seconds=0.05))
    history, live = script.source.history, script.source.state
    assert observe(history, change).holder == holder
    observed = observe(history, change, live)
    assert (observed.holder, observed.costs) == (holder, live.step_costs)
    live.time += 2.5
    assert not observe(history, change, live).holder, "that is another time"
    assert observe(history, change).holder == holder


def found(series: StepSeries, start: float, end: float) -> list[tuple[str, float, float, float]]:
    """Returns the direction, time and length of each change, and the tokens of a step before it."""
    return [
        (
            change.direction,
            round(change.time - 1_024.0, 6),
            round(change.after.seconds, 6),
            round(2.0 * change.before.rate("generated"), 6),
        )
        for change in find_changes(series, start, end)
    ]


def test_changes_are_found_between_windows() -> None:
    """A window is 8 steps, and each change needs three windows before it."""
    series = series_of(
        (32, 8), (24, 5), (24, 8), (3, 2), (13, 2), (8, 4), waiting=(0, 0, 0, 9, 3, 5), pause=0.5
    )
    changes = [
        ("fell", 64.16, 16.0, 8.0),
        ("rose", 112.16, 16.0, 5.0),
        ("fell", 160.16, 16.0, 8.0),
    ]
    assert found(series, -math.inf, math.inf) == changes
    assert found(series, 0.0, 1_024.0 + 176.0)[-1] == ("fell", 160.16, 15.84, 8.0)
    assert found(series, 1_024.0 + 16.0, 2_000.0) == changes
    assert found(series, 1_024.0 + 80.0, 2_000.0) == changes[2:]
    assert found(series, 2_000.0, 1_000.0) == []
    (*_, last) = find_changes(series, 0.0, 2_000.0)
    assert last.before.seconds == 48.0
    assert last.after.gauges["waiting"] == 3, "that of the second half"
    assert last.after.sums["generated"] == pytest.approx(16.0)


def test_a_first_output_is_a_change() -> None:
    series = series_of((40, 0), (24, 1), pause=0.5)
    assert found(series, 0.0, 2_000.0) == [("rose", 80.16, 16.0, 0.0)]
    assert found(series_of((40, 8), (24, 0), pause=0.5), 0.0, 2_000.0) == [
        ("fell", 80.16, 16.0, 8.0)
    ]
    assert found(StepSeries(MemoryStore()), 0.0, 2_000.0) == []


def test_a_rate_below_one_token_a_second_has_shares() -> None:
    before, after = interval(seconds=1_000.0), interval(seconds=1_000.0, generated=200.0)
    assert change_shares(before, after) == {"batch": pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("blocks", "waiting", "expected"),
    [
        (
            ((30, 8), (300, 4)),
            (9, 1),
            (
                "The output is slower than 10 min ago: 2.0 tok/s in the last 1 min, 4.0 then (of"
                " the change: tokens a step 100%); up to 1 waiting, 9 then."
            ),
        ),
        (
            ((30, 4), (300, 8)),
            (),
            (
                "The output is faster than 10 min ago: 4.0 tok/s in the last 1 min, 2.0 then (of"
                " the change: tokens a step 100%)."
            ),
        ),
        (
            ((30, 20), (300, 21)),
            (3, 4),
            (
                "The output is as it was 10 min ago: 10.5 tok/s in the last 1 min, 10.0 then; up to"
                " 4 waiting, 3 then."
            ),
        ),
        (((30, 0), (300, 8)), (), "4.0 tok/s in the last 1 min, 0.0 10 min before."),
        (
            ((14, 4), (28, 6)),
            (),
            (
                "The output is faster than 56 s ago: 3.0 tok/s in the last 28 s, 2.0 then (of"
                " the change: tokens a step 100%)."
            ),
        ),
        (
            ((5, 10), (5, 2)),
            (),
            (
                "The output is slower than 13 s ago: 1.0 tok/s in the last 7 s, 5.0 then (of"
                " the change: tokens a step 100%)."
            ),
        ),
        (((9, 4),), (), ""),
    ],
)
def test_a_comparison_in_words(
    blocks: tuple[tuple[int, int], ...], waiting: tuple[int, ...], expected: str
) -> None:
    series = series_of(*blocks, waiting=waiting)
    assert compare(series, series.end + 5.0) == expected


def test_shares_against_a_change_are_named_too() -> None:
    """Steps of two seconds instead of one with three tokens instead of two.

    The scheduler takes less, but that is not enough to be named.
    """
    series = StepSeries(MemoryStore())
    time = 0.0
    for number in range(60):
        seconds, tokens = (1.0, 2) if number < 30 else (2.0, 3)
        scheduler = 0.03 if number < 30 else 0.0
        step = events.step(
            number,
            start_time=time,
            sequences=[update(1, tokens=range(tokens))],
            stats=events.stats(
                num_running=1,
                scheduler_time=scheduler,
                model_forward_time=seconds,
                model_execute_time=None,
            ),
        )
        time += seconds
        series.add(step, time)
    assert compare(series, time) == (
        "The output is slower than 1 min ago: 1.5 tok/s in the last 30 s, 2.0 then (of the change:"
        " the forward pass 248%; against it: tokens a step -141%)."
    )
    assert compare(series, 30.0).startswith("The output is as it was 20 s ago")
