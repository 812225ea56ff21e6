"""Slow requests, and the fields in which they differ."""

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from seqtop.explain.outliers import FieldDifference, Outliers, SlowRequest, find_outliers
from seqtop.explain.report import outliers_as_text
from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState, slo
from seqtop.wire.messages import CudaGraph, Event, RequestArrived, RequestFinished, StepStats
from tests.support.events import wait_reason
from tests.support.field_cases import (
    adapter_starves,
    ended_requests_keep_blocks,
    scheduler_grows,
)
from tests.support.scripted import Script, ScriptedSource
from tests.support.simulated_scheduler import SimulatedScheduler


def run(*, num_slow: int = 5, num_others: int = 45) -> MemoryStore:
    """Requests one after another, of which some have to wait for blocks. Prompts are alike."""
    rng = random.Random(0)
    script = Script(ScriptedSource())
    kinds = ["slow"] * num_slow + ["other"] * num_others
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds):
        name = f"{kind}-{number}"
        script.arrive(name, num_prompt=rng.randrange(20, 60))
        for _ in range(rng.randrange(4, 9) if kind == "slow" else 0):
            script.step(decode=[], waits=[wait_reason(name, "no_blocks", 1)])
        script.step(prefill={name: 60})
        script.step(stop={name: SequenceStatus.FINISHED_STOPPED})
    return script.source.history


def test_the_slowest_tenth_waited_for_blocks() -> None:
    outliers = find_outliers(run(), slo.Slo())
    assert {request.request_id.split("-")[0] for request in outliers.slow} == {"slow"}
    assert (len(outliers.slow), outliers.num_others) == (5, 45)
    seconds = [request.seconds for request in outliers.slow]
    assert seconds == sorted(seconds, reverse=True)
    fields = {difference.field: difference for difference in outliers.differences}
    assert {"waited", "waited: no free blocks", "why", "ttft"} <= {*fields}
    assert not {"e2e", "prompt", "out", "seq"} & {*fields}
    assert fields["waited: no free blocks"].distance == 1.0
    assert fields["why"].slow == "blocks 100%"
    assert fields["why"].distance == 1.0
    ranks = [(not field.is_cause, -field.distance) for field in outliers.differences]
    assert ranks == sorted(ranks), "causes first"
    results = {field.field for field in outliers.differences if not field.is_cause}
    assert results == {"tps", "ttft", "queue", "waited"}
    text = outliers_as_text(outliers)
    assert text.startswith("5 slow requests of 50: the slowest tenth by E2E\n  slow-")
    lines = text.splitlines()
    assert len(lines) == 1 + 5 + 1 + 2 + len(outliers.differences)
    assert lines[6].startswith("The run: limited by KV blocks: 95% of all waiting")
    assert lines[7].split() == ["differ", "slow", "others", "possible", "cause"]


def test_objectives_mark_slow_requests() -> None:
    outliers = find_outliers(run(), slo.parse("ttft=0.2"))
    assert len(outliers.slow) == 5
    assert outliers.rule == "they missed TTFT ≤ 200 ms"
    assert all(request.missed["ttft"] == request.seconds > 0.2 for request in outliers.slow)
    assert "ttft" not in {difference.field for difference in outliers.differences}


def recorded(events: list[Event]) -> MemoryStore:
    source = ScriptedSource()
    history = MemoryStore()
    source.listeners.append(history.record)
    source.replace(source.state)
    for event in events:
        source.apply(event)
    return history


def test_the_longest_wait_without_an_end_stands_first() -> None:
    outliers = find_outliers(recorded(adapter_starves(60)), slo.Slo())
    assert [own.request_id for own in outliers.slow[:2]] == ["b0", "b1"]
    assert outliers.slow[0].activity == "waits: max_loras (1) other LoRA adapters are in use"
    assert not outliers.slow[2].activity
    assert "  b0: 6." in outliers_as_text(outliers)


def test_facts_of_steps_are_causes_and_no_row_has_equal_medians() -> None:
    outliers = find_outliers(recorded(scheduler_grows()), slo.Slo())
    causes = {field.field for field in outliers.differences if field.is_cause}
    assert "step: scheduler" in causes
    assert "harm" not in causes
    assert all(field.slow != field.others for field in outliers.differences)


class _Scheduler(SimulatedScheduler):
    """A scheduler that takes a little longer for long requests."""

    def figures(self) -> dict[str, Any]:
        is_long = any(own.max_tokens > 10 for own in self.running)
        return {"scheduler_time": 0.00052 if is_long else 0.0005}


def test_a_field_that_explains_a_hundredth_is_no_row() -> None:
    """Slow requests have three times as many tokens; that the scheduler took longer is nothing."""
    run = _Scheduler()
    for number in range(60):
        run.add(f"r{number}", 40, 30 if number % 10 == 0 else 10)
        run.run_out()
    outliers = find_outliers(recorded(run.events), slo.Slo())
    fields = {field.field: field for field in outliers.differences}
    assert fields["out"].distance == 1.0
    assert "step: scheduler" not in fields


def test_those_that_have_not_ended_are_counted_and_say_for_whom_they_wait() -> None:
    outliers = find_outliers(recorded(ended_requests_keep_blocks(60)), slo.Slo())
    assert (len(outliers.slow), outliers.num_others, outliers.num_open) == (2, 0, 18)
    behind = "waits behind n0, which waits: too few blocks are free; 24 more blocks needed"
    assert {own.activity for own in outliers.slow} == {behind}
    text = outliers_as_text(outliers)
    assert text.startswith("2 slow requests of 20 (18 others have not ended): ")


def test_arrivals_count_from_the_first_one() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.step(decode=[])
    history = MemoryStore()
    source.listeners.append(history.record)
    source.replace(source.state)
    for number in range(60):
        name = f"req-{number}"
        script.time += 9.0
        script.arrive(name)
        is_slow = number >= 54
        script.time += 0.898 if is_slow else 0.948
        for _ in range(is_slow):
            script.step(decode=[])
        script.step(prefill={name: 40}, stop={name: SequenceStatus.FINISHED_STOPPED})
    fields = {
        difference.field: difference for difference in find_outliers(history, slo.Slo()).differences
    }
    arrived = fields["arrived"]
    assert (arrived.slow, arrived.others) == ("median 9m 25s", "median 4m 25s")


def test_the_most_frequent_words_of_a_field() -> None:
    script = Script(ScriptedSource())
    ends = [
        SequenceStatus.FINISHED_STOPPED,
        SequenceStatus.FINISHED_ABORTED,
        SequenceStatus.FINISHED_LENGTH_CAPPED,
        SequenceStatus.FINISHED_IGNORED,
    ]
    for number in range(100):
        name = f"req-{number}"
        script.arrive(name)
        is_slow = number % 10 == 0
        for _ in range(is_slow):
            script.step(decode=[])
        script.step(prefill={name: 40})
        script.step(stop={name: ends[0] if is_slow else ends[number * 7 % 100 // 25]})
    history = script.source.history
    fields = {
        difference.field: difference for difference in find_outliers(history, slo.Slo()).differences
    }
    status = fields["status"]
    assert status.slow == "stop 100%"
    assert status.others.count(",") == 2, "of four, three are shown"


class _Compared(Script):
    """Plays requests one after another, every second of which takes longer than a second."""

    def __init__(self, **figures: Any) -> None:
        super().__init__(ScriptedSource())
        self.figures = figures
        """Figures of the next steps."""

    def _figures(self, num_prefill: int, num_decode: int) -> StepStats:
        return msgspec.structs.replace(super()._figures(num_prefill, num_decode), **self.figures)

    def differences(self, play: Callable[[str, bool], object]) -> dict[str, FieldDifference]:
        for number in range(8):
            play(f"r{number}", number % 2 == 1)
        outliers = find_outliers(self.source.history, slo.parse("e2e=1"))
        assert {own.request_id for own in outliers.slow} == {"r1", "r3", "r5", "r7"}
        assert outliers.num_others == 4
        return {difference.field: difference for difference in outliers.differences}


def test_facts_are_those_of_the_steps_in_the_time_of_a_request() -> None:
    """The slow ones have 9 of 12 decodes without a CUDA graph, and are preempted for 8 steps."""
    script = _Compared()

    def play(name: str, is_slow: bool) -> None:
        script.arrive(name, num_prompt=20 if is_slow else 40)
        script.figures = {"scheduler_time": 0.01 if is_slow else 0.002}
        script.step(prefill={name: 20 if is_slow else 40})
        for number in range(12):
            mode = "NONE" if number < (9 if is_slow else 3) else "FULL"
            graph = CudaGraph(mode=mode, num_tokens=1, num_padded_tokens=1)
            script.figures["cuda_graph"] = graph
            script.step()
        del script.figures["cuda_graph"]
        if is_slow:
            waits = [wait_reason(name, "no_blocks", 1)]
            script.step(preempt={name: "other"}, decode=[], waits=waits)
            for _ in range(7):
                script.step(decode=[], waits=waits)
            script.step(prefill={name: 33})
        script.step(stop={name: SequenceStatus.FINISHED_STOPPED})

    fields = script.differences(play)
    shown = {key: (field.slow, field.others) for key, field in fields.items()}
    assert shown["step: eager"] == ("median 75%", "median 25%")
    assert shown["step: scheduler"] == ("median 10.0 ms", "median 2.00 ms")
    assert shown["step: empty"] == ("median 35%", "median 0%")  # 0.4 s of 1.152 s
    assert shown["step: recomputed"] == ("median 48%", "median 0%")  # 32 of 20 + 12 + 33 + 1
    assert shown["time: prefill"] == ("median 100 ms", "median 50.0 ms")
    assert shown["prompt"] == ("median 20", "median 40"), "also if the slow ones have less"
    assert "time: decode" not in shown, "13 steps each"
    assert {fields[key].distance for key in shown} == {1.0}


def test_a_wait_is_compared_with_the_time_by_which_requests_are_slower() -> None:
    """Seconds of which the others have more are no cause of it, nor is a share of 1 in 40."""
    script = _Compared(cuda_graph=CudaGraph(mode="FULL", num_tokens=1, num_padded_tokens=1))

    def play(name: str, is_slow: bool) -> None:
        script.arrive(name)
        for _ in range(1 if is_slow else 3):
            script.step(decode=[], waits=[wait_reason(name, "seq_limit")])
        if is_slow:
            script.step(decode=[], waits=[wait_reason(name, "no_blocks", 1)])
        script.time += 0.013 if is_slow else 0.01
        script.step(prefill={name: 40})
        for _ in range(16 if is_slow else 14):
            script.step()
        script.step(stop={name: SequenceStatus.FINISHED_STOPPED})

    fields = script.differences(play)
    shown = {key: (field.slow, field.others) for key, field in fields.items()}
    assert shown["waited: no free blocks"] == ("median 63.0 ms", "median 0 s")
    assert shown["time: decode"] == ("median 850 ms", "median 750 ms")
    assert not {"waited: max_num_seqs", "step: eager", "step: empty"} & {*shown}


def test_a_figure_of_zero_is_the_least() -> None:
    """Also if others are between zero and one."""
    script = Script(ScriptedSource())
    for number in range(20):
        script.arrive(f"r{number}")
        script.step(prefill={f"r{number}": 40})
        script.actors[f"r{number}"].metrics.time_in_queue = 0.5 if number in (3, 8) else 0.0
        script.step(stop={f"r{number}": SequenceStatus.FINISHED_STOPPED})
    outliers = find_outliers(script.source.history, slo.Slo(), "queue")
    assert {(own.request_id, own.seconds) for own in outliers.slow} == {("r3", 0.5), ("r8", 0.5)}


@pytest.mark.parametrize("time", [math.inf, -math.inf, math.nan])
def test_times_that_no_clock_measures_are_left_out(time: float) -> None:
    script = Script(ScriptedSource())
    for number in range(60):
        name = f"req-{number}"
        script.arrive(name)
        for _ in range(number // 50):
            script.step(decode=[])
        script.step(prefill={name: 40})
        script.actors[name].metrics.time_in_queue = time if number % 2 else 3.0 + number // 50
        script.step(stop={name: SequenceStatus.FINISHED_STOPPED})
    history = script.source.history
    queue = {
        difference.field: difference for difference in find_outliers(history, slo.Slo()).differences
    }["queue"]
    assert (queue.slow, queue.others) == ("median 4.00 s", "median 3.00 s")


def test_few_requests_differ_by_chance_only() -> None:
    outliers = find_outliers(run(num_slow=1, num_others=3), slo.Slo())
    assert len(outliers.slow) == 1
    assert outliers.differences == []
    assert outliers_as_text(outliers).endswith(
        "No field differs by more than chance, and by enough to matter."
    )


@pytest.mark.parametrize(("count", "last"), [(10, "  req-9: 1.00 s"), (11, "  and 1 more")])
def test_text_names_the_ten_slowest(count: int, last: str) -> None:
    slow = [SlowRequest(f"req-{number}", 1.0, {}) for number in range(count)]
    text = outliers_as_text(Outliers("the rule", slow, 0, []))
    assert text.splitlines()[10 : count + 1][-1] == last


def test_messages_that_were_missed_are_passed_over() -> None:
    source = ScriptedSource()
    script = Script(source)
    for number in range(4):
        name = f"req-{number}"
        script.arrive(name)
        script.step(prefill={name: 40})
        if number == 2:
            state = source.state
            source.state = EngineState()
            source.replace(state, num_missed=3)
        script.step(stop={name: SequenceStatus.FINISHED_STOPPED})
    outliers = find_outliers(source.history, slo.Slo())
    assert (len(outliers.slow), outliers.num_others) == (1, 3)


@pytest.mark.parametrize("objectives", ["", "e2e=1h"])
def test_no_slow_requests(objectives: str) -> None:
    history = run() if objectives else MemoryStore()
    if not objectives:
        script = Script(ScriptedSource(history=history))
        script.arrive("a")
    outliers = find_outliers(history, slo.parse(objectives))
    assert outliers.slow == []
    assert outliers_as_text(outliers).startswith("0 slow requests of ")


@pytest.mark.parametrize(
    ("by", "title", "seconds", "own", "others"),
    [
        ("e2e", "E2E", 0.502, "e2e", {"ttft", "queue"}),
        ("ttft", "TTFT", 0.452, "ttft", {"e2e", "queue"}),
        ("queue", "Queue", 0.402, "queue", {"e2e", "ttft"}),
    ],
)
def test_the_slowest_tenth_by_another_figure(
    by: str, title: str, seconds: float, own: str, others: set[str]
) -> None:
    outliers = find_outliers(run(), slo.Slo(), by)
    assert outliers.rule == f"the slowest tenth by {title}"
    assert outliers.slow[0].seconds == pytest.approx(seconds, abs=1e-6)
    assert outliers.slow[0].missed == {}
    fields = {difference.field for difference in outliers.differences}
    assert own not in fields
    assert others <= fields


@pytest.mark.parametrize(("number", "num_slow"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_a_part_of_ten_requests_has_a_slowest_one_too(number: int, num_slow: int) -> None:
    outliers = find_outliers(run(num_slow=0, num_others=number), slo.Slo())
    assert (len(outliers.slow), outliers.num_others) == (num_slow, number - num_slow)


def test_a_request_without_the_figure_is_one_of_the_others() -> None:
    script = Script(ScriptedSource())
    for number in range(12):
        name = f"req-{number}"
        script.arrive(name)
        if number < 6:
            script.step(prefill={name: 40})
        for _ in range(number):
            script.step(decode=[])
        script.step(stop={name: SequenceStatus.FINISHED_ABORTED})
    history = script.source.history
    outliers = find_outliers(history, slo.Slo(), "ttft")
    assert (len(outliers.slow), outliers.num_others) == (1, 11)
    assert outliers.slow[0].request_id in {f"req-{number}" for number in range(6)}
    assert find_outliers(history, slo.Slo()).slow[0].request_id == "req-11"


def test_several_objectives_and_the_first_that_was_missed() -> None:
    outliers = find_outliers(run(), slo.parse("ttft=0.2,e2e=0.5"))
    assert outliers.rule == "they missed TTFT ≤ 200 ms, E2E ≤ 500 ms"
    assert [set(request.missed) for request in outliers.slow] == [{"ttft", "e2e"}] * 3 + [
        {"ttft"}
    ] * 2
    assert [request.seconds for request in outliers.slow] == pytest.approx(
        [0.452, 0.452, 0.452, 0.402, 0.252], abs=1e-5
    )
    assert not {"ttft", "e2e"} & {difference.field for difference in outliers.differences}


def test_the_figures_of_a_difference() -> None:
    outliers = find_outliers(run(), slo.Slo())
    fields = {difference.field: difference for difference in outliers.differences}
    assert fields["ttft"] == FieldDifference(
        "ttft", "time to first token", 1.0, "median 452 ms", "median 52.0 ms", is_cause=False
    )
    assert fields["why"].others == "none 100%"
    assert fields["tps"].slow == "median 4.0"
    waited = fields["waited: no free blocks"]
    assert waited.title == "waited: no free blocks"
    assert (waited.slow, waited.others) == ("median 400 ms", "median 0 s")
    assert not {key for key in fields if key.startswith("time: ")}, "waits have their causes"


def test_prefills_priorities_and_arrivals_are_compared_too() -> None:
    script = Script(ScriptedSource())
    for number in range(60):
        name, is_slow = f"req-{number}", number >= 54
        script.arrive(name, priority=3 if is_slow else 2)
        for _ in range(4 if is_slow else 1):
            script.step(prefill={name: 10})
        script.step(stop={name: SequenceStatus.FINISHED_STOPPED})
    history = script.source.history
    outliers = find_outliers(history, slo.Slo())
    assert {request.request_id for request in outliers.slow} == {f"req-{n}" for n in range(54, 60)}
    fields = {difference.field: difference for difference in outliers.differences}
    prefill = fields["time: prefill"]
    assert (prefill.slow, prefill.others) == ("median 200 ms", "median 50.0 ms")
    assert (fields["prio"].slow, fields["prio"].others) == ("median 3", "median 2")
    assert fields["prio"].distance == fields["arrived"].distance == prefill.distance == 1.0
    assert fields["arrived"].title == "arrived"
    assert "id" not in fields
    assert "request" not in fields


def test_pauses_between_steps_are_a_cause_and_no_decodes() -> None:
    script = Script(ScriptedSource())
    for number in range(60):
        script.arrive(f"req-{number}")
        script.step(prefill={f"req-{number}": 40})
        script.time += 1.0 if number >= 54 else 0.1
        script.step(stop={f"req-{number}": SequenceStatus.FINISHED_STOPPED})
    differences = find_outliers(script.source.history, slo.Slo()).differences
    fields = {difference.field: difference for difference in differences}
    pauses = fields["time: between steps"]
    assert (pauses.slow, pauses.others, pauses.is_cause) == ("median 1.00 s", "median 100 ms", True)
    assert "time: decode" not in fields


def test_a_request_without_sequences_is_passed_over() -> None:
    script = Script(ScriptedSource())
    source, metrics = script.source, RequestMetrics(1.0, 1.0, None, None, None, 2.0)
    source.apply(
        RequestArrived(request_id="none", arrival_time=1.0, seq_ids=[], num_prompt_tokens=4)
    )
    script.arrive("a")
    script.step(stop={"a": SequenceStatus.FINISHED_STOPPED})
    for name in ("none", "unknown"):
        source.apply(
            RequestFinished(
                request_id=name,
                time=2.0,
                status=SequenceStatus.FINISHED_STOPPED,
                metrics=metrics,
            )
        )
    outliers = find_outliers(source.history, slo.Slo())
    assert [request.request_id for request in outliers.slow] == ["a"]
    assert outliers.num_others == 0
