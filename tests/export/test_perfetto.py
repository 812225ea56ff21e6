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
from tests.support import trace_format
from tests.support.random_engine import RandomEngine
from tests.support.trace_format import Begin, CounterSample, End, Instant, Metadata, Trace

NANOSECOND = 1e-9


@pytest.fixture(scope="module")
def runs(recorded: Path) -> list[EngineRun]:
    with FileStore(recorded) as recording:
        return read_runs(recording)


@pytest.fixture(scope="module")
def trace(runs: list[EngineRun]) -> Trace:
    return trace_format.read(b"".join(perfetto.encode(runs)))


def tracks(trace: Trace) -> dict[str, list[tuple[str, float, float]]]:
    """By thread name, its slices as (name, start, seconds); fails where they do not nest."""
    names = {
        event.tid: event.args.name
        for event in trace.trace_events
        if isinstance(event, Metadata) and event.name == "thread_name"
    }
    open_: dict[int, Begin] = {}
    slices: defaultdict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for event in trace.trace_events:
        if isinstance(event, Begin):
            assert event.tid not in open_, "slices of a track overlap"
            open_[event.tid] = event
        elif isinstance(event, End):
            begin = open_.pop(event.tid)
            assert begin.name == event.name
            assert begin.ts < event.ts
            slices[names[event.tid]].append(
                (event.name, begin.ts / 1e6, (event.ts - begin.ts) / 1e6)
            )
    assert not open_, "a slice does not end"
    return slices


def lives(runs: list[EngineRun]) -> dict[str, RequestLifecycle]:
    (run,) = runs
    return run.requests


def test_slices_add_up_to_the_request_metrics(runs: list[EngineRun], trace: Trace) -> None:
    of = tracks(trace)
    assert any(name == "preempted" for track in of.values() for name, *_ in track)
    for request_id, life in lives(runs).items():
        slices, metrics = of[request_id], life.request.metrics
        for (_, start, seconds), (_, following, _) in itertools.pairwise(slices):
            assert math.isclose(start + seconds, following, abs_tol=NANOSECOND)
        total = sum(seconds for *_, seconds in slices)
        end = metrics.finished_time or life.until
        assert math.isclose(total, end - metrics.arrival_time, abs_tol=NANOSECOND)
        if metrics.first_scheduled_time is None:
            continue
        name, _, queued = slices[0]
        assert name == "queued"
        assert math.isclose(queued, metrics.time_in_queue, abs_tol=NANOSECOND)
        assert math.isclose(
            queued, metrics.first_scheduled_time - metrics.arrival_time, abs_tol=NANOSECOND
        )
        assert slices[1][0] == "prefill"


def test_slices_have_the_steps_and_tokens_that_were_computed(runs: list[EngineRun]) -> None:
    clock = perfetto.Clock(runs)
    for life in lives(runs).values():
        spans = [piece.span for piece in perfetto.slices(life, clock) if piece.span]
        assert sum(span.num_steps for span in spans) == life.request.num_scheduled_steps
        assert [span.kind for span in spans].count("preempted") == life.request.num_preemptions


def test_instants_say_what_happened_when(runs: list[EngineRun], trace: Trace) -> None:
    instants = [event for event in trace.trace_events if isinstance(event, Instant)]
    by_name: defaultdict[str, list[Instant]] = defaultdict(list)
    for event in instants:
        by_name[event.name].append(event)
    num_preemptions = sum(life.request.num_preemptions for life in lives(runs).values())
    assert len(by_name["preemption"]) == num_preemptions
    for event in by_name["preemption"]:
        assert event.args["preempted_for"] in lives(runs)
        assert event.args["num_lost_tokens"] > 0
    reasons = [event.args["reason"] for event in by_name["finished"]]
    assert reasons.count("length") == 5
    assert reasons.count("abort") == 1
    with_tokens = [
        life.request.metrics
        for life in lives(runs).values()
        if life.request.metrics.first_token_time is not None
    ]
    assert sorted(event.args["ttft_seconds"] for event in by_name["first token"]) == sorted(
        metrics.first_token_time - metrics.arrival_time for metrics in with_tokens
    )


def test_counters_are_the_figures_of_each_step(runs: list[EngineRun], trace: Trace) -> None:
    samples = [event for event in trace.trace_events if isinstance(event, CounterSample)]
    of = {
        name: [event.args for event in samples if event.name == name]
        for name in {event.name for event in samples}
    }
    stats = [step.stats for step in runs[0].steps]
    assert of["KV blocks"] == [
        {"used": step_stats.num_used_blocks, "cached": step_stats.num_cached_blocks}
        for step_stats in stats
    ]
    assert of["waiting"] == [{"requests": step_stats.num_waiting} for step_stats in stats]
    assert of["tokens per step"] == [
        {"prefill": step_stats.num_prefill_tokens, "decode": step_stats.num_decode_tokens}
        for step_stats in stats
    ]
    assert [counter["requests"] for counter in of["batch"]] == [
        step.num_scheduled for step in runs[0].steps
    ]


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
    trace = trace_format.read(b"".join(perfetto.encode(runs)))
    tracks(trace)
    assert any(event.name == "swap out" for event in trace.trace_events)
    threads = [event for event in trace.trace_events if event.name == "thread_name"]
    assert len({event.tid for event in threads}) == len(threads)
    num_sequences = sum(len(life.sequences) for run in runs for life in run.requests.values())
    assert len(threads) == num_sequences + len(runs)
    processes = [event for event in trace.trace_events if event.name == "process_name"]
    assert len(processes) == 2 * len(runs), "an engine and its requests"
    assert num_sequences > sum(len(run.requests) for run in runs), "something was to fork"


def test_times_that_make_no_sense_still_make_a_trace() -> None:
    script = list(RandomEngine(5, 60))
    for number, event in enumerate(script):
        if number % 5 == 0 and hasattr(event, "time"):
            event.time = [math.nan, math.inf, -1e300, 1e300, 0.0][number // 5 % 5]
        if number % 7 == 0 and hasattr(event, "metrics") and hasattr(event.metrics, "arrival_time"):
            event.metrics.arrival_time = math.nan
            event.metrics.finished_time = -5.0
    trace = trace_format.read(b"".join(perfetto.encode(read_runs(history_of(script)))))
    tracks(trace)
    assert all(event.ts < 1e16 for event in trace.trace_events)


def test_nothing_on_record_is_an_empty_trace() -> None:
    trace = trace_format.read(b"".join(perfetto.encode(read_runs(MemoryStore()))))
    assert len(trace.trace_events) == 3
