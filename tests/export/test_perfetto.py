"""Perfetto traces of a recording of the bundled engine."""

import itertools
import math
from collections import defaultdict
from pathlib import Path

import pytest

from seqtop.export import perfetto
from seqtop.export.lifecycle import EngineRun, RequestLifecycle, read_runs
from seqtop.history import FileStore
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event
from tests.support.decided_runs import recorded as recorded_from
from tests.support.events import (
    arrival,
    engine_info,
    full,
    preemption,
    stats,
    step,
    wait_reason,
)
from tests.support.random_engine import RandomEngine
from tests.support.trace_format import Instant, Trace

NANOSECONDS = 1e9


@pytest.fixture(scope="module")
def runs(recorded: Path) -> list[EngineRun]:
    with FileStore(recorded) as recording:
        return read_runs(recording)


@pytest.fixture(scope="module")
def trace(runs: list[EngineRun]) -> Trace:
    return written(runs)


def written(runs: list[EngineRun]) -> Trace:
    return Trace(b"".join(perfetto.encode(runs)))


def lives(runs: list[EngineRun]) -> dict[str, RequestLifecycle]:
    (run,) = runs
    return run.requests


def test_slices_add_up_to_the_request_metrics(runs: list[EngineRun], trace: Trace) -> None:
    assert any(slice_.name == "preempted" for of in trace.slices.values() for slice_ in of)
    for request_id, life in lives(runs).items():
        slices, metrics = trace.slices[request_id], life.request.metrics
        for one, following in itertools.pairwise(slices):
            assert one.end == following.start
        total = sum(slice_.end - slice_.start for slice_ in slices)
        end = metrics.finished_time or life.until
        assert math.isclose(total, (end - metrics.arrival_time) * NANOSECONDS, abs_tol=1)
        if metrics.first_scheduled_time is None:
            continue
        queued = slices[0]
        assert queued.name == "queued"
        assert math.isclose(
            queued.end - queued.start, metrics.time_in_queue * NANOSECONDS, abs_tol=1
        )
        assert slices[1].name == "prefill"


def test_slices_have_the_steps_and_tokens_that_were_computed(runs: list[EngineRun]) -> None:
    for life in lives(runs).values():
        spans = [piece.span for piece in perfetto.slices(life) if piece.span]
        assert sum(span.num_steps for span in spans) == life.request.num_scheduled_steps
        assert [span.kind for span in spans].count("preempted") == life.request.num_preemptions


def test_scheduling_and_execution_are_within_their_step(
    runs: list[EngineRun], trace: Trace
) -> None:
    slices = trace.slices["steps"]
    steps = [slice_ for slice_ in slices if slice_.depth == 0]
    assert [slice_.args["step"] for slice_ in steps] == [step.step for step in runs[0].steps]
    for name in ("schedule", "execute"):
        assert sum(slice_.name == name and slice_.depth == 1 for slice_ in slices) == len(steps)
    assert {slice_.name for slice_ in slices} == {"step", "schedule", "execute"}


def test_instants_say_what_happened_when(runs: list[EngineRun], trace: Trace) -> None:
    by_name: defaultdict[str, list[Instant]] = defaultdict(list)
    for instant in trace.instants:
        by_name[instant.name].append(instant)
    num_preemptions = sum(life.request.num_preemptions for life in lives(runs).values())
    assert len(by_name["preemption"]) == num_preemptions
    for instant in by_name["preemption"]:
        assert instant.args["preempted_for"] in lives(runs)
        assert instant.args["num_lost_tokens"] > 0
    reasons = [instant.args["reason"] for instant in by_name["finished"]]
    assert (reasons.count("length"), reasons.count("abort")) == (5, 1)
    assert sorted(instant.args["ttft_seconds"] for instant in by_name["first token"]) == sorted(
        life.request.metrics.first_token_time - life.request.metrics.arrival_time
        for life in lives(runs).values()
        if life.request.metrics.first_token_time is not None
    )


def test_arrows_lead_from_a_preemption_to_the_resumption_and_to_who_it_was_for(
    runs: list[EngineRun], trace: Trace
) -> None:
    victims = [
        (life.request.request_id, preemption.for_request_id)
        for life in lives(runs).values()
        for _, preemption in life.observations.preemptions.values()
    ]
    arrows = [tuple(arrow) for arrow in trace.flows.values()]
    for victim, beneficiary in victims:
        assert ((victim, "preemption"), (beneficiary, "preempts")) in arrows
        assert ((victim, "preempted"), (victim, "prefill")) in arrows
    assert len(arrows) == 2 * len(victims) > 0


def test_counters_are_the_figures_of_each_step(runs: list[EngineRun], trace: Trace) -> None:
    steps = runs[0].steps
    assert trace.counters == {
        "KV blocks used": [step.stats.num_used_blocks for step in steps],
        "KV blocks cached": [step.stats.num_cached_blocks for step in steps],
        "batch": [step.num_scheduled for step in steps],
        "waiting": [step.stats.num_waiting for step in steps],
        "prefill tokens per step": [step.stats.num_prefill_tokens for step in steps],
        "decode tokens per step": [step.stats.num_decode_tokens for step in steps],
    }


def history_of(*scripts: list[Event]) -> MemoryStore:
    """Each script a start of the engine."""
    history = MemoryStore()
    for script in scripts:
        state = EngineState(max_finished=5)
        state.apply(script[0])
        history.restore(script[0].incarnation, 0, state)
        for number, event in enumerate(script[1:], 1):
            payload = codec.encode(event)
            event = parsing.event(payload)
            state.apply(event)
            history.append(number, payload, event, state)
    return history


def test_swaps_forks_and_a_restart() -> None:
    history = history_of(
        list(RandomEngine(3, 120, num_blocks=24)),
        list(RandomEngine(4, 60, incarnation="two", start=1.8e9)),
    )
    runs = read_runs(history)
    assert [run.incarnation for run in runs] == ["one", "two"]
    trace = written(runs)
    assert any(instant.name == "swap out" for instant in trace.instants)
    num_sequences = sum(len(life.sequences) for run in runs for life in run.requests.values())
    assert len(trace.threads) == num_sequences + len(runs)
    assert num_sequences > sum(len(run.requests) for run in runs), "something was to fork"
    expected = {
        f"{name} sequence {sequence.seq_id}" if len(life.sequences) > 1 else name
        for run in runs
        for name, life in run.requests.items()
        for sequence in life.sequences
    }
    assert expected <= set(trace.threads.values())
    assert any(len(life.sequences) == 2 for run in runs for life in run.requests.values())


def test_times_and_figures_that_make_no_sense_still_make_a_trace() -> None:
    script = list(RandomEngine(5, 60))
    for number, event in enumerate(script):
        if number % 5 == 0 and hasattr(event, "time"):
            event.time = [math.nan, math.inf, -1e300, 1e300, 0.0][number // 5 % 5]
        if number % 7 == 0 and hasattr(event, "metrics") and hasattr(event.metrics, "arrival_time"):
            event.metrics.arrival_time = math.nan
            event.metrics.finished_time = -5.0
        if number % 3 == 0 and hasattr(event, "stats"):
            event.stats.scheduler_time = [math.nan, -1.0, 1e300][number // 3 % 3]
    trace = written(read_runs(history_of(script)))
    assert all(slice_.end < 2**63 for of in trace.slices.values() for slice_ in of)


@pytest.mark.parametrize(("source", "more"), [("", ""), ("a.seqtop", ", PREDICTION from a.seqtop")])
def test_a_process_has_the_names_of_engine_and_model_and_of_what_it_is_predicted_from(
    source: str, more: str
) -> None:
    trace = written(read_runs(history_of([engine_info(predicted_from=source), step(0)])))
    assert [*trace.processes] == [f"requests of test, none{more}"]


def test_a_clock_may_begin_at_zero() -> None:
    """That of the prediction of a trace does; parts of a step without a duration are no slices."""
    figures = stats(scheduler_time=0.0, model_execute_time=0.25)
    first = step(0, start_time=0.0, time=0.5, stats=figures)
    trace = written(read_runs(history_of([engine_info(), first])))
    found = [(own.name, own.start, own.end) for own in trace.slices["steps"]]
    assert sorted(found) == [("execute", 0, 250_000_000), ("step", 0, 500_000_000)]


def test_a_preemption_before_the_recording_is_known_by_its_time_only() -> None:
    prompt = full("req-1", 1, chunk=3)
    events = (
        *(engine_info(), arrival(1), step(0, prompt), step(1, preemptions=[preemption("req-1")])),
        step(2, wait_reasons=[wait_reason("req-1", "no_blocks", 1)]),
        step(3, prompt),
    )
    trace = written(read_runs(recorded_from(events, first=4)))
    (preempted,) = (own for own in trace.slices["req-1"] if own.name == "preempted")
    assert (preempted.start, preempted.end) == (101 * 10**9, 103 * 10**9)
    assert preempted.args == {"request_id": "req-1", "num_steps_no_blocks": 1}


def test_nothing_on_record_is_an_empty_trace() -> None:
    trace = written(read_runs(MemoryStore()))
    assert trace.processes.keys() == {"requests"}
    assert not trace.slices
