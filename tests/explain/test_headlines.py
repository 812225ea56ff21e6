"""Headlines: drops and spikes of the throughput, with the causes that were observed."""

from collections import Counter
from typing import Any

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
from seqtop.sequence import SequenceStatus
from seqtop.wire.snapshot import StepCosts
from tests.support.events import wait_reason
from tests.support.scripted import Script, ScriptedSource

BEFORE, AFTER = 200, 60
"""Steps before the change and after it, of 50 ms."""


class Headlined:
    """A run of four requests that decode, and what is done after a while."""

    def __init__(self) -> None:
        self.history = MemoryStore()
        self.script = Script(ScriptedSource(history=self.history), num_gpu_blocks=4_000)
        self.names = [f"r{number}" for number in range(4)]
        for name in self.names:
            self.script.arrive(name, max_tokens=4_000)
        self.script.step(prefill=dict.fromkeys(self.names, 40))
        self.decode(BEFORE)

    def decode(self, number: int, names: list[str] | None = None, **more: Any) -> None:
        for _ in range(number):
            self.script.step(decode=self.names if names is None else names, **more)

    def sentences(self) -> list[str]:
        series = StepSeries(self.history)
        while not series.update():
            pass
        return [
            headline(change, observe(self.history, change))
            for change in find_changes(series, series.start + 1.0, series.end)
        ]


def _fewer(run: Headlined) -> None:
    for name in run.names[1:]:
        run.script.finish(name, SequenceStatus.FINISHED_STOPPED)
    run.names = run.names[:1]
    run.decode(AFTER)


def _prefills(run: Headlined) -> None:
    run.script.arrive("long", num_prompt=4_000)
    for _ in range(AFTER):
        run.script.step(decode=run.names[:1], prefill={"long": 40})


def _host(run: Headlined) -> None:
    for _ in range(AFTER):
        run.script.time += 0.1
        run.decode(1)


def _paced(run: Headlined) -> None:
    run.script.paced_time = 0.1
    _host(run)


def _preempted(run: Headlined) -> None:
    run.script.step(decode=run.names[:1], preempt={"r3": "r0"})
    run.decode(AFTER, run.names[:1], waits=[wait_reason("r3", "no_blocks", 1)])


def _blocked(run: Headlined) -> None:
    for name in run.names[1:]:
        run.script.finish(name, SequenceStatus.FINISHED_STOPPED)
    run.names = run.names[:1]
    run.script.arrive("late", num_prompt=4_000)
    run.decode(AFTER, waits=[wait_reason("late", "no_blocks", 9)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_fewer, "1.0 tokens a step, 4.0 before; 1 sequence ran, 4 before, and none waited"),
        (_host, "the host between steps took 100 ms a step"),
        (_paced, "waiting on purpose between steps took 100 ms a step"),
        (_prefills, "prefill chunks of long ("),
        (_blocked, "4 before, and others waited (no free blocks; r0 held "),
        (_preempted, "1.0 tokens a step, 4.0 before; r3 was preempted for r0; this makes 100% of"),
    ],
)
def test_a_drop_has_the_cause_that_was_observed(change: Any, words: str) -> None:
    run = Headlined()
    change(run)
    (sentence,) = run.sentences()
    assert sentence.startswith("Output fell from 80.0 to 2")
    assert words in sentence


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (0.004, "40.0 ms a step, 10.0 ms before, with 6 prefill chunks of long (60 tokens)"),
        (0.0001, "40.0 ms a step, 10.0 ms before; what made it so was not observed"),
    ],
)
def test_prefills_are_named_only_if_their_tokens_cost_enough(cost: float, words: str) -> None:
    """Of ten steps each, which took 30 ms longer with 10 prefill tokens instead of none."""
    intervals = [
        Interval(
            steps * seconds,
            dict.fromkeys(("scheduler", "execute", "rest", "host", "paced", "idle"), 0.0)
            | {"steps": steps, "generated": 40.0, "prefill": prefill, "forward": steps * seconds},
            {},
        )
        for steps, seconds, prefill in ((10.0, 0.01, 0.0), (10.0, 0.04, 100.0))
    ]
    observed = Observed(
        prefills=Counter(long=60),
        num_chunks=Counter(long=6),
        costs=StepCosts(per_step=0.01, per_prefill_token=cost),
    )
    assert words in headline(Change(1.0, "fell", *intervals), observed)


def test_a_steady_run_has_no_headlines() -> None:
    assert Headlined().sentences() == []


def test_the_shares_of_a_change_add_up() -> None:
    run = Headlined()
    _host(run)
    run.decode(AFTER, run.names[:2])
    series = StepSeries(run.history)
    while not series.update():
        pass
    before = series.between(series.start + 2, series.start + 8)
    after = series.between(series.end - 4, series.end)
    shares = change_shares(before, after)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares, key=lambda name: shares[name]) == "batch"


def test_a_run_is_compared_with_its_past() -> None:
    run = Headlined()
    run.decode(300, run.names[:1])
    series = StepSeries(run.history)
    while not series.update():
        pass
    sentence = compare(series, series.end)
    assert sentence.startswith("The output is slower than ")
    assert "tokens a step 100%" in sentence
    assert compare(series, series.start + 9.0) == ""
    steady = Headlined()
    steady.decode(300)
    series = StepSeries(steady.history)
    while not series.update():
        pass
    assert compare(series, series.end).startswith("The output is as it was ")
