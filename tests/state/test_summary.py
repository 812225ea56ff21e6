"""The summary of an engine, and the sentence on its limit in shorter forms."""

from __future__ import annotations

import msgspec
import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.latency import Latencies
from seqtop.state.summary import MAX_LIMIT, Summarizer, forms, oldest_wait, summarize
from seqtop.state.verdict import EngineVerdict, of_last_minute
from seqtop.wire import codec
from seqtop.wire.messages import EngineInfo, EngineStopped, Heartbeat
from tests.support.events import arrival, engine_info, step, update
from tests.support.simulated_scheduler import SimulatedScheduler


def run(num_requests: int) -> SimulatedScheduler:
    scheduler = SimulatedScheduler(engine_id="dp1", model="m", max_num_seqs=4)
    for number in range(num_requests):
        scheduler.add(f"r{number}", 100, 200)
    scheduler.steps(30)
    return scheduler


def test_a_publisher_and_a_viewer_make_the_same_of_the_same_events() -> None:
    state, latencies = EngineState(), Latencies()
    summarizer = Summarizer(state)
    for event in run(9).events:
        touched = state.apply(event)
        summarizer.observe(state, touched, event)
        latencies.observe(state, touched)
    seen = summarize(state, latencies, None, of_last_minute(state))
    assert seen is not None
    assert summarizer.summary(state) == seen
    assert (seen.num_running, seen.num_waiting) == (4, 5)
    assert seen.oldest_wait > 0
    assert seen.is_limited
    assert "sequences" in seen.limit
    assert seen.itl_p99 is not None


def test_rates_are_those_since_the_summary_before() -> None:
    state = EngineState()
    summarizer, events = Summarizer(state), run(2).events
    for event in events[:1]:
        summarizer.observe(state, state.apply(event), event)
    first = summarizer.summary(state)
    assert first is not None
    assert first.generated_rate is None, "of no time, no rate is known"
    for event in events[1:]:
        summarizer.observe(state, state.apply(event), event)
    beat = Heartbeat(time=first.time + 10.0, step=state.step)
    summarizer.observe(state, state.apply(beat), beat)
    second = summarizer.summary(state)
    assert second is not None
    assert second.step_rate == pytest.approx(30 / 10)
    num_tokens = sum(len(own.output_token_ids) for own in state.sequences.values())
    assert second.generated_rate == pytest.approx(num_tokens / 10)
    again = summarizer.summary(state)
    assert again is not None
    assert again.step_rate == second.step_rate, "without time, those known last"
    beat = Heartbeat(time=first.time + 10.25, step=state.step)
    summarizer.observe(state, state.apply(beat), beat)
    soon = summarizer.summary(state)
    assert soon is not None
    assert soon.step_rate == second.step_rate, "so soon, those known last"
    beat = Heartbeat(time=first.time + 20.0, step=state.step)
    summarizer.observe(state, state.apply(beat), beat)
    third = summarizer.summary(state)
    assert third is not None
    assert third.step_rate == 0


def test_an_engine_without_a_description_has_no_summary() -> None:
    assert Summarizer(EngineState()).summary(EngineState()) is None


def test_long_texts_are_cut_off() -> None:
    state, scheduler = EngineState(), run(1)
    assert isinstance(scheduler.info, EngineInfo)
    state.apply(scheduler.info)
    state.apply(EngineStopped(time=1.0, reason="x" * 100_000))
    summary = summarize(state, Latencies(), None, EngineVerdict("y" * 100_000, cause="z"))
    assert summary is not None
    assert summary.limit == "y" * (MAX_LIMIT - 1) + "…"
    assert len(codec.encode(summary)) < 600
    assert msgspec.msgpack.decode(codec.encode(summary))[0] == "EngineSummary"


def test_a_sentence_has_shorter_forms() -> None:
    whole = "KV blocks: 80% of all waiting; r1 holds 90 of 100"
    assert forms(whole) == [whole, "KV blocks: 80% of all waiting", "KV blocks"]
    assert forms("nothing") == ["nothing"] * 3


@pytest.mark.parametrize(("status", "seconds"), [("RUNNING", 2.5), ("WAITING", 0.0)])
def test_all_wait_for_a_step_while_one_runs(status: str, seconds: float) -> None:
    state = EngineState()
    own = update(0, SequenceStatus[status], 3)
    first = step(0, start_time=0.25, time=0.5, sequences=[own])
    for event in (engine_info(), arrival(0), first, Heartbeat(time=3.0, step=0)):
        state.apply(event)
    assert oldest_wait(state, Latencies()) == seconds
