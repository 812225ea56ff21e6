"""The figures of steps over time add up, whatever interval one asks for."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec
import pytest

from seqtop.history import segments, step_series
from seqtop.history.memory_store import MemoryStore
from seqtop.history.step_series import StepSeries
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import EngineInfo, Step
from tests.support import events
from tests.support.questions import stats
from tests.support.recordings import append, encoded
from tests.support.scripted import engine_info
from tests.support.simulated_engine import START


def a_step(number: int, start: float, end: float, **figures: Any) -> Step:
    return events.step(
        number,
        start_time=START + start,
        time=START + end,
        sequences=[],
        stats=stats(**figures),
    )


def stored(*events: Step | EngineInfo, **limits: int) -> MemoryStore:
    store = MemoryStore(**limits)
    append(store, [codec.encode(event) for event in (engine_info(), *events)], EngineState())
    return store


def read(store: MemoryStore, **options: int) -> StepSeries:
    series = StepSeries(store, **options)
    while not series.update():
        pass
    return series


def test_the_parts_of_the_time_add_up_to_it() -> None:
    """Two steps of a second, half a second between them, and an idle one at the end."""
    series = read(
        stored(
            a_step(0, 0.0, 1.0),
            a_step(1, 1.5, 2.5, num_running=0),
            a_step(2, 3.5, 4.5),
        )
    )
    whole = series.between(START, START + 4.5)
    expected = {
        "scheduler": 0.3, "forward": 1.5, "execute": 0.3, "rest": 0.9, "host": 0.5, "idle": 1.0
    }  # fmt: skip
    for part, seconds in expected.items():
        assert whole.sums[part] == pytest.approx(seconds), part
    assert sum(whole.shares().values()) == pytest.approx(1.0)
    assert series.between(START + 1.0, START + 1.5).shares()["host"] == pytest.approx(1.0)
    assert series.between(START + 2.5, START + 3.5).shares()["idle"] == pytest.approx(1.0)


def test_a_long_step_spreads_its_tokens() -> None:
    series = read(stored(a_step(0, 0.0, 10.0, num_prefill_tokens=1_000, num_decode_tokens=0)))
    assert series.between(START + 2.0, START + 3.0).rate("prefill") == pytest.approx(100.0)
    assert series.before(START + 10.0, 4.0).rate("prefill") == pytest.approx(100.0)
    assert series.before(START + 99.0, 4.0).rate("prefill") == pytest.approx(100.0)


def test_a_step_spreads_its_tokens_from_the_step_before_unless_nothing_ran() -> None:
    paced = [a_step(n, n, n + 0.2, num_decode_tokens=8) for n in range(9)]
    ended = a_step(9, 9.0, 9.2, num_running=0, num_decode_tokens=8)
    series = read(stored(*paced, ended, a_step(10, 12.0, 12.2, num_decode_tokens=8)))
    for start in (0.2, 0.5, 1.13, 7.9):
        rate = series.between(START + start, START + start + 0.6).rate("decode")
        assert rate == pytest.approx(8.0), start
    assert series.between(START + 9.2, START + 12.0).rate("decode") == 0.0
    assert series.between(START, START + 12.2).sums["decode"] == pytest.approx(88.0)


def test_any_division_of_the_time_has_the_same_totals() -> None:
    store = MemoryStore()
    script = encoded(4, 60, num_blocks=24)
    append(store, script, EngineState())
    steps = [event for event in map(parsing.event, script) if isinstance(event, Step)]
    series = read(store)
    rng = random.Random(1)
    cuts = sorted([series.start, series.end, *(
        rng.uniform(series.start, series.end) for _ in range(50)
    )])  # fmt: skip
    parts = [series.between(*pair) for pair in itertools.pairwise(cuts)]
    for name, of in {
        "prefill": lambda step: step.stats.num_prefill_tokens,
        "decode": lambda step: step.stats.num_decode_tokens,
        "preemptions": lambda step: len(step.preemptions),
    }.items():
        assert sum(part.sums[name] for part in parts) == pytest.approx(sum(map(of, steps)))
    assert max(part.gauges.get("used", 0) for part in parts) == max(
        step.stats.num_used_blocks for step in steps
    )


def test_fewer_rows_have_the_same_totals_and_peaks() -> None:
    steps = [
        a_step(number, 2.0 * number, 2.0 * number + 1.0, num_used_blocks=number)
        for number in range(500)
    ]
    store = stored(*steps)
    fine = read(store)
    coarse = read(store, max_rows=200)
    assert (len(coarse), len(fine)) == (200, 1_000), "50 fewer whenever there are 201"
    assert coarse.between(0.0, coarse.end).sums == fine.between(0.0, fine.end).sums
    assert coarse.between(0.0, coarse.end).gauges == fine.between(0.0, fine.end).gauges


def test_gauges_of_a_kind_are_of_one_moment() -> None:
    """The largest of each kind of blocks would be more blocks than there ever were."""
    pools = ((30, 2, 4), (10, 25, 1), (12, 0, 24))
    steps = [
        a_step(
            number,
            2.0 * number,
            2.0 * number + 1.0,
            num_used_blocks=used,
            num_cached_blocks=cached,
            num_free_blocks=free,
            num_running=number + 1,
            num_waiting=9 - 4 * number,
        )
        for number, (used, cached, free) in enumerate(pools)
    ]
    wanted = {"used": 30, "cached": 2, "free": 4, "running": 3, "waiting": 9}
    series = read(stored(*steps))
    assert series.between(series.start, series.end).gauges == wanted
    many = [step for number in range(40) for step in renumbered(steps, 3 * number)]
    coarse = read(stored(*many), max_rows=40)
    assert coarse.between(coarse.start, coarse.end).gauges == wanted


def renumbered(steps: Sequence[Step], first: int) -> Iterator[Step]:
    for number, step in enumerate(steps, first):
        start = START + 2.0 * number
        yield msgspec.structs.replace(step, step=number, start_time=start, time=start + 1.0)


def test_unrecorded_figures_are_unknown() -> None:
    """After missed steps, neither the time between nor the figures in it are known."""
    series = read(stored(a_step(0, 0.0, 1.0), a_step(7, 3.0, 4.0)))
    between = series.between(START + 1.5, START + 2.5)
    assert between.gauges == {}
    assert sum(between.shares().values()) == 0.0
    before = series.between(START - 9.0, START - 8.0)
    assert (before.gauges, sum(before.sums.values())) == ({}, 0.0)


def test_a_growing_store_is_read_on_and_what_it_drops_is_dropped() -> None:
    state, script = EngineState(), encoded(6, 400, num_blocks=24)
    store = MemoryStore(max_events=300)
    series = StepSeries(store)
    with mock.patch.object(segments, "SEGMENT_BYTES", 10_000):
        for number, payload in enumerate(script):
            event = parsing.event(payload)
            state.apply(event)
            store.append(number, payload, event, state)
            assert series.update()
    assert store.first > 0
    assert store.index[store.first].time <= series.start < series.end
    late = read(store)
    begin = late.start + 0.5 * (late.end - late.start)
    figures, wanted = late.between(begin, late.end), series.between(begin, series.end)
    assert figures.sums == pytest.approx(wanted.sums)
    assert figures.gauges == wanted.gauges


def test_figures_that_no_engine_has_do_no_harm() -> None:
    nan, inf = float("nan"), float("inf")
    series = read(
        stored(
            a_step(0, 0.0, 1.0, model_forward_time=nan, scheduler_time=inf),
            a_step(1, nan, 2.0, model_execute_time=-5.0),
            a_step(2, 2.0, inf, num_decode_tokens=-7, num_used_blocks=2**62),
            a_step(3, -inf, 3.0, model_execute_time=None, model_forward_time=None),
            a_step(4, 5.0, 4.0),
        )
    )
    whole = series.between(START, series.end + 1)
    assert all(value >= 0 for value in whole.sums.values())
    assert sum(whole.shares().values()) <= 1.0 + 1e-9
    assert series.update()


def test_many_events_are_read_in_parts() -> None:
    store = stored(*(a_step(number, number, number + 0.5) for number in range(800)))
    series = StepSeries(store)
    assert not series.update()
    assert series.update()
    assert series.between(START, series.end).sums["decode"] == pytest.approx(800)


def test_the_length_of_a_step_is_the_time_from_one_to_the_next() -> None:
    assert read(stored(*(a_step(n, 2 * n, 2 * n + 1) for n in range(9)))).step_length() == 2.0
    assert StepSeries(MemoryStore()).step_length() == 0.0


def test_a_time_before_all_steps_has_its_length_and_no_figures() -> None:
    nothing = dict.fromkeys(read(stored()).between(1.0, 2.0).sums, 0.0)
    for series in (StepSeries(MemoryStore()), read(stored(a_step(0, 0.0, 1.0)))):
        assert series.between(3.0, 5.0) == (2.0, nothing, {})
        assert series.between(5.0, 3.0) == (0.0, nothing, {})


def test_the_tokens_of_slow_steps_are_spread_over_the_pauses() -> None:
    series = read(
        stored(*(a_step(n, 2.0 * n, 2.0 * n + 0.5, num_decode_tokens=8) for n in range(5)))
    )
    for start, end in ((0.5, 2.0), (2.0, 2.5), (3.1, 7.3)):
        rate = series.between(START + start, START + end).rate("decode")
        assert rate == pytest.approx(4.0), start


def test_the_first_second_is_that_from_the_first_step_on() -> None:
    series = read(stored(*(a_step(n, n + 0.25, n + 0.75) for n in range(4))))
    begun, later = series.last_second(START + 1.5), series.last_second(START + 2.5)
    assert begun is not None
    assert later is not None
    assert (begun.seconds, later.seconds) == (1.25, 1.0)


def test_large_events_are_read_in_smaller_parts() -> None:
    store = stored(*(a_step(number, number, number + 0.5) for number in range(20)))
    series = StepSeries(store)
    size = len(codec.encode(a_step(0, 0, 0.5)))
    with mock.patch.object(step_series, "MAX_BYTES", size):
        num_parts = 1
        while not series.update():
            num_parts += 1
    assert num_parts == store.last
    assert series.between(START, series.end).sums["steps"] == pytest.approx(20)


def test_figures_by_second() -> None:
    series = read(stored(*(a_step(n, n, n + 0.5, num_used_blocks=n) for n in range(6))))
    assert series.sums_by_second("decode", START + 4.2, 3) == [1.0, 1.0, 1.0]
    assert series.gauge_by_second("used", START + 4.2, 3) == [1.0, 2.0, 3.0]
    assert series.sums_by_second("steps", START + 2.0, 60) == [1.5, 1.0]
    assert series.sums_by_second("steps", START + 8.0, 3) == [0.5, 0.0, 0.0], "it is idle"
    assert series.sums_by_second("steps", math.nan, 3) == []
    assert StepSeries(MemoryStore()).gauge_by_second("used", START, 3) == []


def test_last_second() -> None:
    store = stored(*(a_step(number, number, number + 0.5) for number in range(800)))
    series = StepSeries(store)
    assert series.last_second(START + 1.0) is None
    assert not series.update()
    assert series.last_second(START + 799.0) is None, "it has not been read"
    assert series.update()
    for time, num_steps in ((2.0, 1.0), (2.25, 1.0), (800.0, 0.5), (801.0, 0.0)):
        figures = series.last_second(START + time)
        assert figures is not None
        assert figures.rate("steps") == pytest.approx(num_steps), time
    begun = series.last_second(START + 0.9)
    assert begun is not None
    assert begun.rate("steps") == pytest.approx(1.4 / 0.9), "of the time so far"
    assert series.last_second(START + 0.25) is not None
    assert series.last_second(START + 0.2) is None
    assert series.last_second(math.nan) is None


def test_generated_tokens_are_those_of_the_sequences() -> None:
    for seed in range(20):
        store, state = MemoryStore(), EngineState()
        append(store, encoded(seed, 80, num_blocks=24), state)
        series = read(store)
        assert series.between(0.0, series.end).sums["generated"] == state.num_output_tokens
        assert series.between(0.0, series.end).sums["steps"] == state.num_steps_seen


def test_the_larger_gauges_are_those_that_are_known() -> None:
    unknown = (math.nan, 9.0)
    assert step_series._larger((1.0, 5.0), (2.0, 0.0)) == (2.0, 0.0)
    assert step_series._larger((2.0, 0.0), (1.0, 5.0)) == (2.0, 0.0)
    assert step_series._larger(unknown, (1.0, 5.0)) == (1.0, 5.0)
    assert step_series._larger((1.0, 5.0), unknown) == (1.0, 5.0)
