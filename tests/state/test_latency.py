"""Latencies: one sample per figure, whatever the order of updates."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.freeze import freeze
from seqtop.state.latency import MAX_RUNS, QUIET, Latencies, Measured, minute_percentile
from seqtop.state.listener import StateChange
from seqtop.state.sliding_window import WINDOW
from seqtop.state.slo import Slo
from seqtop.tui.ui_state import UiState
from seqtop.wire.messages import Heartbeat, SequenceUpdate
from tests.support.events import update
from tests.support.random_engine import RandomEngine
from tests.support.reducer_events import RUNNING, arrived, metrics, prefilled, step
from tests.support.scripted import STEP_TIME, Script, ScriptedSource, engine_info
from tests.support.simulated_engine import START


def observed(slo: Slo | None = None, *, max_finished: int = 1_000) -> tuple[Script, Latencies]:
    """A script whose every event is looked at."""
    source = ScriptedSource(max_finished=max_finished)
    latencies = Latencies(slo or Slo())
    changes: list[StateChange] = []
    source.add_listener(changes.append)

    def look() -> None:
        touched = {seq_id for change in changes for seq_id in change.touched or ()}
        is_new = any(change.touched is None for change in changes)
        latencies.observe(source.state, None if is_new else touched)
        changes.clear()

    source.after_event = look
    return Script(source), latencies


def test_each_figure_is_what_the_metrics_say() -> None:
    script, latencies = observed()
    script.arrive("a", num_prompt=32)
    script.time += 0.1
    script.step(prefill={"a": 32})
    for _ in range(3):
        script.step()
    script.time += 0.25
    script.step(stop={"a": SequenceStatus.FINISHED_STOPPED})
    metrics = script.source.state.requests["a"].metrics
    figures = {key: window.figures() for key, window in latencies.windows.items()}
    assert figures["queue"].p50 == metrics.time_in_queue == pytest.approx(0.102)
    assert figures["ttft"].p50 == metrics.first_token_time - START == pytest.approx(0.152)
    assert (figures["itl"].num, figures["itl"].p50) == (4, pytest.approx(0.05))
    assert figures["itl"].largest == pytest.approx(0.3)
    assert figures["tpot"].p50 == pytest.approx((3 * 0.05 + 0.3) / 4)
    assert figures["e2e"].p50 == pytest.approx(0.152 + 3 * 0.05 + 0.3)
    assert [window.num for window in figures.values()] == [1, 4, 1, 1, 1]
    latencies.observe(script.source.state, script.source.state.sequences)
    assert sizes(latencies.now) == {"ttft": 1, "itl": 4, "tpot": 1, "queue": 1, "e2e": 1}
    assert len(latencies.met) == 1


def test_there_are_no_figures_before_the_first_state() -> None:
    latencies = Latencies()
    assert {*sizes(latencies.now).values()} == {0}
    assert len(latencies.now.met) == 0
    assert latencies.take_alerts() == []


def test_a_state_that_was_never_seen_is_counted_whole() -> None:
    script, _ = observed()
    script.arrive("a", num_prompt=32)
    script.step(prefill={"a": 32})
    latencies = Latencies()
    latencies.observe(script.source.state, ())
    latencies.observe(freeze(script.source.state), ())
    assert sizes(latencies.now) == {"ttft": 1, "itl": 0, "tpot": 0, "queue": 1, "e2e": 0}


def test_the_queue_time_is_known_without_a_figure_of_the_engine() -> None:
    """And a time that no clock can measure is left out."""
    state = EngineState()
    state.apply(arrived("a", 1))
    state.apply(arrived("b", 2, time=30.0))
    changes: dict[str, Any] = {"time_in_queue": None}
    known = {
        "a": metrics(**changes),
        "b": metrics(arrival_time=30.0, **changes),
    }
    tokens = [update(seq_id, RUNNING, 3, tokens=[5]) for seq_id in (1, 2)]
    state.apply(step(0, sequences=tokens, metrics=known))
    latencies = Latencies()
    latencies.observe(state, None)
    assert [*latencies.windows["queue"].values] == [10.0]
    assert [*latencies.windows["ttft"].values] == [10.5]


def test_the_tokens_of_a_fork_count_from_the_fork_on() -> None:
    state, latencies = prefilled(), Latencies()
    latencies.observe(state, None)

    def look(number: int, *updates: SequenceUpdate) -> list[float]:
        latencies.observe(state, state.apply(step(number, sequences=[*updates])))
        return [*latencies.windows["itl"].values]

    def one_more(seq_id: int) -> SequenceUpdate:
        return update(seq_id, RUNNING, 4, tokens=[6])

    assert look(2, one_more(1)) == [2.0]
    fork = update(5, RUNNING, 4, parent=1, request_id="a", table=[7])
    assert look(3, fork) == [2.0]
    assert look(6, one_more(5)) == [2.0, 4.0]
    assert look(7, one_more(5)) == [2.0, 4.0, 1.0]
    # The fork goes on alone: what its request has been counted with stays.
    assert look(8, update(1, RUNNING, 4, is_removed=True)) == [2.0, 4.0, 1.0]
    latencies.observe(state, [99])
    assert look(9, one_more(5)) == [2.0, 4.0, 1.0, 2.0]
    assert sizes(latencies.now) == {"ttft": 1, "itl": 4, "tpot": 0, "queue": 1, "e2e": 0}


def test_tokens_that_came_between_two_looks_share_their_time() -> None:
    script, latencies = observed()
    script.arrive("a", num_prompt=32)
    script.source.after_event, look = None, script.source.after_event
    for _ in range(5):
        script.step(prefill={} if script.running else {"a": 32})
    assert look is not None
    look()
    figures = latencies.windows["itl"].figures()
    assert (figures.num, figures.largest) == (4, pytest.approx(0.05))


def test_of_tokens_seen_late_those_of_the_window_count() -> None:
    script, latencies = observed()
    script.arrive("new", num_prompt=32)
    script.arrive("old", num_prompt=32)
    script.step(prefill={"new": 32, "old": 32})
    script.source.after_event, look = None, script.source.after_event
    script.step(decode=["old"])
    script.time += 61
    script.step(decode=["new"])
    assert look is not None
    look()
    assert [*latencies.windows["itl"].values] == [pytest.approx(61 + 2 * STEP_TIME)]
    assert [*latencies.windows["itl"].times] == [script.time]


def test_each_gap_is_counted_as_it_comes_and_drawing_looks_at_no_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(ScriptedSource())
    ui = UiState(script.source)
    script.arrive("a", num_prompt=32)
    script.step(prefill={"a": 32})
    gaps = [0.01 * number for number in range(1, 8)]
    for gap in gaps:
        script.time += gap - STEP_TIME
        script.step()
    window = ui.latencies.windows["itl"]
    assert [*window.values] == pytest.approx(gaps)
    looked: list[int] = []
    observe = ui.latencies.observe

    def note(state: EngineState, touched: Iterable[int] | None) -> None:
        looked.extend([-1] if touched is None else touched)
        observe(state, touched)

    monkeypatch.setattr(ui.latencies, "observe", note)
    ui.update()
    assert looked == []
    script.step()
    assert looked == [1]
    assert [*window.values] == pytest.approx([*gaps, STEP_TIME])


def test_old_samples_leave_and_can_be_looked_back_at() -> None:
    script, latencies = observed()
    script.arrive("a", num_prompt=32)
    script.step(prefill={"a": 32})
    then = script.time
    script.source.apply(Heartbeat(time=then + WINDOW + 1, step=0))
    assert len(latencies.windows["ttft"]) == 0
    window = latencies.at(script.info, then).windows["ttft"]
    assert ([*window.times], [*window.values]) == ([then], [pytest.approx(then - START)])
    assert len(latencies.at(script.info, then - 1).windows["ttft"]) == 0


def sizes(measured: Measured) -> dict[str, int]:
    return {key: len(window) for key, window in measured.windows.items()}


def restarted(script: Script, *, after: float = 2.0) -> Script:
    """The engine of `script`, started anew so many seconds later."""
    info = engine_info(incarnation="b2")
    script.source.replace(EngineState(info=info, time=script.time + after))
    anew = Script(script.source, incarnation="b2")
    anew.time = script.time + after
    return anew


def known_medians(measured: Measured, now: float) -> list[float]:
    """The medians of the times between tokens in each second that has some."""
    return [it for it in measured.windows["itl"].medians(now) if not math.isnan(it)]


@pytest.mark.parametrize("after", [2.0, -2.0], ids=["later", "by a clock that is behind"])
def test_an_engine_started_anew_has_figures_of_its_own(after: float) -> None:
    script, latencies = observed(Slo(ttft=0.001))
    script.arrive("a", num_prompt=32)
    script.step(prefill={"a": 32})
    for _ in range(30):
        script.step()
    script.step(stop={"a": SequenceStatus.FINISHED_STOPPED})
    old, met = sizes(latencies.now), len(latencies.met)
    medians = known_medians(latencies.now, script.time)
    assert old == {"ttft": 1, "itl": 31, "tpot": 1, "queue": 1, "e2e": 1}
    assert len(medians) == 2, "one per second"
    assert latencies.take_alerts() != []
    anew = restarted(script, after=after)
    assert {*sizes(latencies.now).values()} == {0}
    assert len(latencies.met) == 0
    assert known_medians(latencies.now, anew.time) == []
    anew.arrive("a", num_prompt=8)
    anew.step(prefill={"a": 8})
    anew.step()
    assert sizes(latencies.now) == {"ttft": 1, "itl": 1, "tpot": 0, "queue": 1, "e2e": 0}
    assert latencies.take_alerts() != []
    before = latencies.at(script.info, script.time)
    assert (sizes(before), len(before.met)) == (old, met)
    assert known_medians(before, script.time) == medians
    assert sizes(latencies.at(anew.info, anew.time)) == sizes(latencies.now)


def test_of_many_starts_the_newest_are_kept() -> None:
    script, latencies = observed()
    for number in range(MAX_RUNS + 1):
        script.source.replace(EngineState())
        script = Script(script.source, incarnation=f"start-{number}")
        script.arrive("a", num_prompt=8)
        script.step(prefill={"a": 8})
    infos = [engine_info(incarnation=f"start-{number}") for number in range(MAX_RUNS + 1)]
    kept = [sizes(latencies.at(info, script.time))["ttft"] for info in infos]
    assert kept == [0] + [1] * MAX_RUNS
    # The second one is played again, and is then newer than the third.
    for number in (1, 99):
        script.source.replace(EngineState())
        script = Script(script.source, incarnation=f"start-{number}")
        script.arrive("a", num_prompt=8)
        script.step(prefill={"a": 8})
    kept = [sizes(latencies.at(info, script.time))["ttft"] for info in infos]
    assert kept == [0, 1, 0] + [1] * (MAX_RUNS - 2)


def test_a_late_viewer_has_the_latencies_of_the_state() -> None:
    script, _ = observed()
    script.arrive("a", num_prompt=32)
    script.step(prefill={"a": 32})
    script.step(stop={"a": SequenceStatus.FINISHED_STOPPED})
    late = Latencies(Slo(ttft=0.001))
    late.observe(script.source.state, None)
    late.observe(script.source.state, None)  # a snapshot counts nothing twice
    assert [len(window) for window in late.windows.values()] == [1, 0, 1, 1, 1]
    assert sizes(late.at(script.info, script.time)) == sizes(late.now)
    assert late.take_alerts() == []
    assert (len(late.met), late.met.mean()) == (1, 0.0)
    script.arrive("b", num_prompt=32)
    script.step(prefill={"b": 32})
    late.observe(script.source.state, None)  # after a gap
    assert [len(window) for window in late.windows.values()] == [2, 0, 1, 2, 1]
    then = script.time
    script.source.apply(Heartbeat(time=then + 61.0, step=0))
    later = Latencies()
    later.observe(script.source.state, None)
    assert {*sizes(later.now).values(), len(later.met)} == {0}, "all of it is too long ago"
    assert sizes(later.at(script.info, then)) == sizes(late.at(script.info, then))
    assert len(later.at(script.info, then).met) == 1


def test_an_id_that_is_used_again_counts_again() -> None:
    source = ScriptedSource(max_finished=1)
    latencies = Latencies(Slo())
    source.add_listener(lambda change: latencies.observe(change.state, change.touched))
    script = Script(source)
    for name in ("a", "b", "a"):
        script.arrive(name, num_prompt=8)
        script.step(prefill={name: 8})
        script.step(stop={name: SequenceStatus.FINISHED_STOPPED})
    assert list(source.state.requests) == ["a"]
    assert sizes(latencies.now) == {"ttft": 3, "itl": 3, "tpot": 3, "queue": 3, "e2e": 3}


def test_goodput_counts_whoever_ended_by_itself() -> None:
    script, latencies = observed(Slo(ttft=0.1))
    for name, delay in (("good", 0.0), ("slow", 0.2), ("gone", 0.0)):
        script.arrive(name, num_prompt=8)
        script.time += delay
        script.step(prefill={name: 8}, decode=[])
    script.finish("gone", SequenceStatus.FINISHED_ABORTED)
    script.finish("good", SequenceStatus.FINISHED_STOPPED)
    script.finish("slow", SequenceStatus.FINISHED_LENGTH_CAPPED)
    assert (len(latencies.met), latencies.met.mean()) == (2, 0.5)
    script.arrive("too long")
    script.finish("too long", SequenceStatus.FINISHED_IGNORED)
    assert (len(latencies.met), len(latencies.windows["e2e"])) == (2, 2), "it has no token"


@pytest.mark.parametrize("slo", [Slo(), Slo(ttft=0.1)])
def test_the_oldest_wait_is_that_of_any_request_that_does_not_run(slo: Slo) -> None:
    state, latencies, waits = EngineState(max_finished=20), Latencies(slo), []
    num_preempted = 0
    for event in RandomEngine(3, 300, load=12, max_running=4, num_blocks=24):
        latencies.observe(state, state.apply(event))
        since = []
        for request in state.requests.values():
            metrics = request.metrics
            status = state.sequences[request.seq_ids[0]].status
            if request.finish_reason is None and metrics.first_token_time is None:
                since.append(metrics.arrival_time)
            elif request.finish_reason is None and status is not SequenceStatus.RUNNING:
                since.append(metrics.last_token_time)
                num_preempted += 1
        waits.append(max((state.time - time for time in since), default=0.0))
        assert latencies.oldest_wait == max(waits[-1], 0.0)
        late = Latencies()
        late.observe(state, None)
        assert late.oldest_wait == latencies.oldest_wait
    assert max(waits) > 0.0 == min(waits)
    assert num_preempted > 10


def test_a_burst_is_told_once() -> None:
    script, latencies = observed(Slo(ttft=0.04))
    news = []
    for index in range(20):
        script.arrive(f"r-{index}", num_prompt=8)
        script.step(prefill={f"r-{index}": 8}, decode=[])
        news += latencies.take_alerts()
    assert [name for name, _ in news] == ["r-0"]
    script.time += QUIET + 1
    script.arrive("again", num_prompt=8)
    script.step(prefill={"again": 8}, decode=[])
    ((name, what),) = latencies.take_alerts()
    assert (name, what) == ("again", {"ttft": pytest.approx(0.052)})


def test_the_end_of_a_burst_is_half_a_minute_without_a_miss() -> None:
    script, latencies = observed(Slo(ttft=0.04))
    numbers = []
    for number, after in enumerate((0.0, 29.9, 29.9, 30.1)):
        script.time += after - 0.052
        script.arrive(f"r-{number}", num_prompt=8)
        script.step(prefill={f"r-{number}": 8}, decode=[])
        numbers.append(len(latencies.take_alerts()))
    assert numbers == [1, 0, 0, 1]


def test_a_request_is_told_once() -> None:
    script, latencies = observed(Slo(ttft=0.04), max_finished=0)
    for name in ("pair", "pair"):
        script.time += QUIET + 1
        script.arrive(name, num_prompt=8, n=2)
        script.step(prefill={name: 8})
        assert [request_id for request_id, _ in latencies.take_alerts()] == [name]
        script.time += QUIET + 1
        script.step()
        assert latencies.take_alerts() == []
        script.time += QUIET + 1
        script.step(stop={name: SequenceStatus.FINISHED_STOPPED})
        assert latencies.take_alerts() == []


def test_a_request_of_another_run_is_told_again() -> None:
    script, latencies = observed(Slo(ttft=0.04))
    for _ in range(2):
        script.arrive("a", num_prompt=8)
        script.step(prefill={"a": 8})
        assert [request_id for request_id, _ in latencies.take_alerts()] == ["a"]
        script = restarted(script)


def test_a_percentile_of_the_first_tokens_counts_those_that_wait() -> None:
    script, latencies = observed()
    script.arrive("a", num_prompt=32)
    script.step(prefill={"a": 32})
    state, ttft = script.source.state, latencies.windows["ttft"].values[0]
    assert minute_percentile(state, latencies.windows, "ttft", 100) == (ttft, False)
    script.arrive("waits")
    script.time += 2.0
    script.step()
    waited = state.time - state.requests["waits"].metrics.arrival_time
    assert waited > 2.0
    assert minute_percentile(state, latencies.windows, "ttft", 100) == (waited, True)
    gap = latencies.windows["itl"].values[0]
    assert minute_percentile(state, latencies.windows, "itl", 100) == (gap, False)
    assert minute_percentile(EngineState(), Latencies().windows, "ttft", 50) is None


def test_gaps_of_a_recording_replace_those_that_were_counted() -> None:
    script, latencies = observed()
    latencies.set_gaps([1.0], [0.5])
    assert sizes(latencies.now)["itl"] == 0, "there is no run that they are of"
    script.arrive("a", num_prompt=32)
    for _ in range(3):
        script.step(prefill={} if script.running else {"a": 32})
    times = [script.time - 3.0, script.time - 2.0, script.time - 1.0, script.time]
    latencies.set_gaps(times, [0.5, -1.0, math.nan, 0.25])
    itl = latencies.windows["itl"]
    assert ([*itl.times], [*itl.values]) == ([times[0], times[3]], [0.5, 0.25])
    latencies.set_gaps([], [])
    assert sizes(latencies.now)["itl"] == 0
