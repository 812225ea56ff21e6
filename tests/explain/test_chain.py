"""The parts of a request's time in a run whose causes are known."""

import math
from typing import Any

import pytest

from seqtop.explain.chain import Chain, Part
from seqtop.explain.explanation import Explanation, explain
from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import RecordingError
from seqtop.sequence import RequestMetrics, SequenceGroupMetadata, SequenceStatus
from seqtop.state import RequestState, Span
from seqtop.state.freeze import freeze
from seqtop.state.wait_causes import PACED
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    CudaGraph,
    Event,
    Heartbeat,
    RequestArrived,
    StreamingUpdate,
    WaitReason,
)
from tests.support.events import arrival, delta, full, stats, step, update, wait_reason
from tests.support.scripted import STEP_TIME, Script, ScriptedSource

GRAPHS = "FULL", "NONE"


def no_blocks(name: str) -> list[WaitReason]:
    return [wait_reason(name, "no_blocks", 3)]


@pytest.fixture
def script() -> Script:
    return Script(ScriptedSource())


def parts_of(script: Script, name: str) -> list[Part]:
    history = script.source.history
    request = script.source.state.requests[name]
    return explain(history, request, history.last).parts()


def summary(parts: list[Part]) -> list[tuple[str, str, int | None, float]]:
    return [(part.kind, part.cause, part.step, round(part.seconds, 3)) for part in parts]


def test_a_wait_for_blocks_names_their_holder(script: Script) -> None:
    script.arrive("long", num_prompt=100)
    script.step(prefill={"long": 60})
    script.step(prefill={"long": 40})
    script.arrive("short")
    for _ in range(3):
        script.step(decode=["long"], waits=no_blocks("short"))
    script.time += 0.5  # the host
    script.step(prefill={"short": 40}, decode=["long"])
    script.step(stop={"short": SequenceStatus.FINISHED_STOPPED})
    script.time += 0.1  # the host again, for less
    script.step()
    parts = parts_of(script, "short")
    assert summary(parts) == [
        ("queued", "between_steps", 2, 0.002),
        ("queued", "no_blocks", 2, 0.65),
        ("prefill", "", 5, STEP_TIME),
        ("decode", "", 6, STEP_TIME),
    ]
    assert [part.before_first_token for part in parts] == [True, True, True, False]
    assert [part.num_missing for part in parts] == [0, 3, 0, 0]
    wait = parts[1]
    assert (wait.num_steps, wait.num_missing, wait.is_behind) == (3, 3, False)
    assert wait.holder is not None
    assert (wait.holder.request_id, wait.holder.admitted_step) == ("long", 0)
    assert (wait.holder.num_blocks, wait.holder.num_prompt_tokens) == (7, 100)
    # The other one was slowed by that prefill, and by the host: most by the longer pause.
    parts = parts_of(script, "long")
    assert summary(parts)[2:] == [
        ("host", "", 5, 0.602),
        ("decode", "", 2, 5 * STEP_TIME),
        ("decode", "mixed_batch", 5, STEP_TIME),
    ]
    assert [round(part.longest, 3) for part in parts[2:]] == [0.5, STEP_TIME, STEP_TIME]
    assert parts[-1].others == {"short": 40}


def test_time_that_the_engine_waits_on_purpose_is_apart(script: Script) -> None:
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    script.paced_time = 0.3
    script.time += 0.5
    script.step(stop={"runs": SequenceStatus.FINISHED_STOPPED})
    parts = [part for part in parts_of(script, "runs") if part.kind == "host"]
    assert summary(parts) == [("host", PACED, 1, 0.3), ("host", "", 1, 0.2)]


def test_a_wait_behind_another_and_one_without_a_reason(script: Script) -> None:
    for name in ("runs", "head", "behind"):
        script.arrive(name)
    script.step(prefill={"runs": 40}, waits=no_blocks("head"))
    script.time += 0.1  # the host
    script.step(waits=no_blocks("head"))
    script.step()
    parts = parts_of(script, "behind")
    assert summary(parts)[1:] == [
        ("queued", "no_blocks", 0, 0.1 + 2 * STEP_TIME),
        ("queued", "unknown", 2, STEP_TIME),
    ]
    assert parts[1].is_behind
    assert parts[1].others == {"head": 2}, "one for each step"
    holder = parts_of(script, "head")[1].holder
    assert holder is not None
    assert (holder.request_id, holder.admitted_step) == ("runs", 0), "in the step of the wait"


def test_figures_that_an_engine_does_not_count_are_not_missing(script: Script) -> None:
    script.arrive("head")
    script.arrive("behind")
    for missing in (0, -5):
        reason = wait_reason("head", "seq_limit", missing)
        script.step(waits=[reason])
    for name in ("head", "behind"):
        assert [part.num_missing for part in parts_of(script, name)] == [0, 0]
        assert parts_of(script, name)[1].cause == "seq_limit"


def test_reading_stops_at_the_end_of_the_request(script: Script) -> None:
    script.arrive("a")
    script.arrive("b")
    script.step(prefill={"a": 40, "b": 40})
    script.time += 1.0
    script.finish("a", SequenceStatus.FINISHED_ABORTED)
    history = script.source.history
    end = history.last
    for _ in range(10):
        script.step()
    found = explain(history, script.source.state.requests["a"], history.last)
    assert found.position == end
    assert summary(found.parts())[-1] == ("unknown", "in_progress", 0, 1.0)


def test_a_preemption_and_the_recomputation(script: Script) -> None:
    script.arrive("victim")
    script.arrive("other")
    script.step(prefill={"victim": 40, "other": 40})
    script.step()
    script.step(preempt={"victim": "other"}, waits=no_blocks("victim"))
    script.step(prefill={"victim": 41}, decode=["other"])
    parts = parts_of(script, "victim")
    assert summary(parts)[-2:] == [
        ("preempted", "no_blocks", 2, STEP_TIME),
        ("prefill", "recompute", 3, STEP_TIME),
    ]
    assert parts[-2].preemption is not None
    assert parts[-2].preemption.for_request_id == "other"


def test_a_running_request_that_is_left_out_of_a_batch(script: Script) -> None:
    script.arrive("a")
    script.arrive("b")
    script.step(prefill={"a": 20, "b": 20})
    script.step(prefill={"b": 256}, decode=[])  # all of the budget
    script.step(decode=["b"])
    parts = parts_of(script, "a")[-2:]
    assert summary(parts) == [
        ("unscheduled", "token_budget", 1, STEP_TIME),
        ("unscheduled", "unknown", 2, STEP_TIME),
    ]
    assert [part.num_steps for part in parts] == [1, 1]


def test_time_without_recorded_steps_is_divided_by_the_spans(script: Script) -> None:
    script.arrive("a")
    script.step(prefill={"a": 40})
    late = ScriptedSource()
    late.replace(script.source.state)
    script.source = late
    script.step()
    script.step()
    assert summary(parts_of(script, "a")) == [
        ("queued", "not_recorded", None, 0.002),
        ("prefill", "not_recorded", None, STEP_TIME),
        ("decode", "", 1, 2 * STEP_TIME),
    ]
    script.step()
    late.replace(late.state, num_missed=3)
    script.time += 1.0
    script.step()
    assert [part.cause for part in parts_of(script, "a")] == [
        "not_recorded",
        "not_recorded",
        "",
        "",
    ]


def test_the_token_budget_is_that_of_the_state_before(script: Script) -> None:
    script.arrive("a")
    script.arrive("b")
    script.step(prefill={"a": 20, "b": 20})
    late = ScriptedSource()
    late.replace(script.source.state)
    script.source = late
    script.step(prefill={"b": 256}, decode=[])
    assert summary(parts_of(script, "a"))[-1] == ("unscheduled", "token_budget", 1, STEP_TIME)


def test_steps_that_are_dropped_while_it_is_read_are_not_recorded(script: Script) -> None:
    script.source.history = history = MemoryStore(max_events=100)
    script.source.listeners[:] = [history.record]
    script.arrive("a")
    for _ in range(20):
        script.step(decode=[])
    request = script.source.state.requests["a"]
    explanation = Explanation(history, request, history.last)
    while explanation.position < 10:
        explanation.advance(0.0)
    for _ in range(3_000):
        script.step(decode=[])
    assert history.first > 20
    assert explanation.extend(request, history.last)
    while explanation.advance(0.0):
        pass
    parts = explanation.parts()
    assert [part.cause for part in parts] == ["between_steps", "unknown", "not_recorded"]
    assert sum(part.seconds for part in parts) == pytest.approx(
        script.time - request.metrics.arrival_time
    )


def test_the_cause_before_the_first_step_is_that_of_the_state(script: Script) -> None:
    """It names the request at the head of the queue, and the holder of the blocks is known.

    The step in which that one was admitted is not.
    """
    for name in ("runs", "head", "behind"):
        script.arrive(name)
    script.step(prefill={"runs": 40}, waits=no_blocks("head"))
    late = ScriptedSource()
    late.replace(script.source.state)
    script.source = late
    script.time += 0.5
    script.step(waits=no_blocks("head"))
    head, behind = parts_of(script, "head")[-1], parts_of(script, "behind")[-1]
    expected = ("queued", "no_blocks", 1, 0.5 + STEP_TIME)
    assert summary([head, behind]) == [expected, expected]
    assert (head.is_behind, head.num_missing, head.others) == (False, 3, {})
    assert (behind.is_behind, behind.others) == (True, {"head": 1})
    assert head.holder is not None
    assert (head.holder.request_id, head.holder.admitted_step) == ("runs", None)


def test_a_limited_number_of_holders_is_looked_up(script: Script) -> None:
    """The first eight: each takes a seek."""
    script.arrive("holds", num_prompt=100)
    script.step(prefill={"holds": 100})
    script.arrive("a")
    for _ in range(10):
        script.step(waits=no_blocks("a"))
        script.step(prefill={"a": 40})
        script.step(preempt={"a": "holds"}, waits=no_blocks("a"))
    waits = [part for part in parts_of(script, "a") if part.cause == "no_blocks"]
    assert len(waits) == 11
    assert [part.holder is not None for part in waits] == [True] * 8 + [False] * 3


def test_an_id_that_is_used_again_has_another_explanation(script: Script) -> None:
    script.arrive("a")
    script.step()
    history, request = script.source.history, script.source.state.requests["a"]
    explanation = Explanation(history, request, history.last)
    metrics = RequestMetrics(request.metrics.arrival_time + 9.0, 0.0, None, None, None)
    assert explanation.extend(request, history.last)
    assert not explanation.extend(RequestState("b", request.metrics, [1]), history.last)
    assert not explanation.extend(RequestState("a", metrics, [1]), history.last)


def test_a_request_that_ends_before_any_step(script: Script) -> None:
    script.arrive("a")
    script.time += 1.0
    script.finish("a", SequenceStatus.FINISHED_ABORTED)
    assert summary(parts_of(script, "a")) == [("queued", "in_progress", None, 1.002)]


def test_a_request_that_ended_in_a_gap(script: Script) -> None:
    script.arrive("a")
    script.step(prefill={"a": 40})
    state = freeze(script.source.state)
    later = Script(ScriptedSource())
    later.arrive("a")
    later.step(prefill={"a": 40})
    later.time += 1.0
    later.finish("a", SequenceStatus.FINISHED_ABORTED)
    script.source.replace(later.source.state, num_missed=2)
    for _ in range(3):
        script.source.apply(Heartbeat(time=later.time + 5.0, step=1))
    assert state.requests["a"].finish_reason is None
    history = script.source.history
    found = explain(history, script.source.state.requests["a"], history.last)
    assert found.position == history.last - 3, "it ends at the state after the gap"
    assert summary(found.parts())[-1] == ("unknown", "not_recorded", None, 1.0)


def test_the_status_of_an_engine_is_a_cause(script: Script) -> None:
    script.arrive("a")
    script.arrive("b")
    request = script.source.state.requests["a"]
    script.step(decode=[])
    event = step(1)
    event.start_time, event.time = script.time, script.time + STEP_TIME
    event.sequences = [
        update(
            request.seq_ids[0], SequenceStatus.WAITING, 0, engine_status="WAITING_FOR_REMOTE_KVS"
        )
    ]
    script.source.apply(event)
    causes = {name: [part.cause for part in parts_of(script, name)] for name in "ab"}
    assert causes == {
        "a": ["between_steps", "unknown", "WAITING_FOR_REMOTE_KVS"],
        "b": ["between_steps", "unknown"],
    }


def test_the_status_at_arrival_is_a_cause(script: Script) -> None:
    script.source.apply(
        RequestArrived(
            request_id="a",
            arrival_time=script.time,
            seq_ids=[90],
            num_prompt_tokens=3,
            engine_status="WAITING_FOR_FSM",
        )
    )
    script.step()
    assert summary(parts_of(script, "a")) == [("queued", "WAITING_FOR_FSM", 0, STEP_TIME)]


def test_a_budget_that_no_engine_has_told(script: Script) -> None:
    script.arrive("a")
    script.arrive("b")
    script.step(prefill={"a": 20, "b": 20})
    late = ScriptedSource()
    script.source.state.info = None
    late.replace(script.source.state)
    script.source = late
    script.step(prefill={"b": 256}, decode=[])
    assert summary(parts_of(script, "a"))[-1] == ("unscheduled", "unknown", 1, STEP_TIME)


def test_tokens_of_a_chunk_whose_past_is_not_recorded(script: Script) -> None:
    script.arrive("a", num_prompt=100)
    script.step(prefill={"a": 60})
    late = ScriptedSource()
    late.replace(script.source.state)
    script.source = late
    script.step(prefill={"a": 40})
    script.step()
    parts = parts_of(script, "a")
    assert [(part.kind, part.num_tokens) for part in parts[-2:]] == [("prefill", 40), ("decode", 1)]


def test_an_event_that_cannot_be_read_is_an_error(script: Script) -> None:
    script.arrive("a")
    script.step(waits=[wait_reason("a", "no cause")])  # type: ignore[arg-type]
    with pytest.raises(RecordingError, match=r"^event 3 cannot be read"):
        parts_of(script, "a")


def test_missed_steps_after_the_last_span_are_unknown() -> None:
    metrics = RequestMetrics(10.0, 10.0, None, None, None)
    chain = Chain(RequestState("a", metrics, [1]))
    spans = [Span("queued", 10.0, 12.0), Span("prefill", 13.0, 14.0)]
    chain.resume(RequestState("a", metrics, [1], spans=spans), 15.0)
    assert summary(chain.parts) == [
        ("queued", "not_recorded", None, 2.0),
        ("unknown", "not_recorded", None, 2.0),
        ("prefill", "not_recorded", None, 1.0),
    ]


def test_a_first_token_in_steps_that_are_not_recorded_divides_them() -> None:
    metrics = RequestMetrics(10.0, 10.0, None, 13.5, None)
    chain = Chain(RequestState("a", metrics, [1]))
    spans = [Span("queued", 10.0, 13.0), Span("prefill", 13.0, None)]
    chain.resume(RequestState("a", metrics, [1], spans=spans), 15.0)
    assert summary(chain.parts) == [
        ("queued", "not_recorded", None, 3.0),
        ("prefill", "not_recorded", None, 0.5),
        ("prefill", "not_recorded", None, 1.5),
    ]
    assert [part.before_first_token for part in chain.parts] == [True, True, False]


def test_an_unfinished_request_has_an_open_part(script: Script) -> None:
    script.arrive("a")
    script.step(prefill={"a": 40})
    script.source.apply(Heartbeat(time=script.time + 2.0, step=0))
    parts = parts_of(script, "a")
    assert summary(parts)[-1] == ("unknown", "in_progress", None, 2.0)
    assert (parts[-1].start, parts[-1].longest) == (pytest.approx(0.052, abs=1e-6), 2.0)


def test_no_cause_is_known_after_the_last_step(script: Script) -> None:
    script.arrive("head")
    script.step(waits=no_blocks("head"))
    script.source.apply(Heartbeat(time=script.time + 2.0, step=0))
    parts = parts_of(script, "head")
    assert summary(parts)[1:] == [
        ("queued", "no_blocks", 0, STEP_TIME),
        ("queued", "in_progress", None, 2.0),
    ]
    assert parts[-1].before_first_token


def test_a_step_that_began_before_the_arrival_gives_no_cause(script: Script) -> None:
    """Neither one whose end is published before the arrival, nor one published later."""
    script.arrive("head")
    for is_published in (True, False):
        name = f"late-{is_published}"
        arrival = RequestArrived(
            request_id=name, arrival_time=script.time + 0.01, seq_ids=[], num_prompt_tokens=3
        )
        if not is_published:
            script.source.apply(arrival)
        script.step(waits=no_blocks("head"))
        if is_published:
            script.source.apply(arrival)
    script.step(waits=no_blocks("head"))
    assert summary(parts_of(script, "late-True")) == [
        ("queued", "arriving", 0, STEP_TIME - 0.01),
        ("queued", "no_blocks", 1, 2 * STEP_TIME),
    ]
    assert summary(parts_of(script, "late-False")) == [
        ("queued", "arriving", 1, STEP_TIME - 0.01),
        ("queued", "no_blocks", 2, STEP_TIME),
    ]


def test_a_request_does_not_wait_for_its_own_blocks(script: Script) -> None:
    """A request with more input waits again, and has its blocks still."""
    script.arrive("a")
    script.step(prefill={"a": 40})
    script.time += 0.5
    script.source.apply(
        StreamingUpdate(
            request_id="a",
            time=script.time,
            num_computed_tokens=40,
            num_prompt_tokens=60,
            prompt="",
            prompt_token_ids=Ints.of([]),
        )
    )
    script.step(decode=[], waits=no_blocks("a"))
    parts = parts_of(script, "a")
    assert summary(parts)[-2:] == [
        ("unknown", "", 0, 0.5),
        ("queued", "no_blocks", 1, STEP_TIME),
    ]
    assert parts[-1].holder is None


def test_a_session_with_new_input_waits_for_its_turn_again(script: Script) -> None:
    """It no longer waits for its client, as it did after the last output."""
    script.arrive("a")
    script.step(prefill={"a": 40})
    (seq_id,) = script.source.state.requests["a"].seq_ids
    chain = Chain(script.source.state.requests["a"])
    status = "WAITING_FOR_STREAMING_REQ"
    idle = update(seq_id, SequenceStatus.WAITING, 40, engine_status=status, request_id="a")
    start = script.time
    later = StreamingUpdate(
        request_id="a", time=start + 0.5, num_computed_tokens=40, num_prompt_tokens=60
    )
    for event in (
        step(1, start_time=start, time=start + 0.1, sequences=[idle]),
        later,
        step(2, start_time=start + 0.6, time=start + 0.8, wait_reasons=no_blocks("a")),
    ):
        chain.apply(1, event)
    last = chain.parts[-1]
    assert (last.kind, last.cause, last.seconds) == ("queued", "no_blocks", pytest.approx(0.2))


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 0.0])
def test_times_that_no_clock_measures(time: float) -> None:
    """They add nothing, and nothing is less than nothing."""
    arrival = RequestArrived(request_id="a", arrival_time=100.0, seq_ids=[1], num_prompt_tokens=3)
    chain = Chain(RequestState("a", RequestMetrics(100.0, 100.0, None, None, None), [1]))
    chain.apply(1, arrival)
    for number in range(3):
        event = step(number)
        event.start_time = event.time = time
        chain.apply(number + 2, event)
    assert chain.parts == []
    assert chain.open_part(time) is None


def test_the_number_of_parts_is_limited(script: Script) -> None:
    """A request that is preempted again and again has one part for all later phases."""
    script.arrive("a")
    for _ in range(200):
        script.step(prefill={"a": 40})
        script.step(preempt={"a": "a"}, decode=[])
    parts = parts_of(script, "a")
    assert len(parts) == 1 + 255 + 2, "the first wait, 255 phases, and the two kinds of all others"
    assert [part.num_steps for part in parts[-3:]] == [1, 73, 72]
    assert sum(part.seconds for part in parts) == pytest.approx(
        script.source.state.time - script.source.state.requests["a"].metrics.arrival_time
    )


def test_decodes_with_and_without_a_graph_and_with_prefills_of_others() -> None:
    """Of half a second each, with half a second between them."""
    request = RequestState("req-1", RequestMetrics(100.0, 100.0, None, None, None), [1])
    chain = Chain(request)
    graph, eager = (CudaGraph(mode=mode, num_tokens=1, num_padded_tokens=1) for mode in GRAPHS)
    decode = delta("req-1", 1)
    chain.apply(0, step(0, full("req-1", 1, chunk=3)))
    others: list[SequenceGroupMetadata] = [full("req-2", 2, chunk=7)]
    figures: list[dict[str, Any]] = [
        {"cuda_graph": graph},
        {"cuda_graph": eager, "scheduler_time": None},
        {"cuda_graph": eager, "scheduler_time": 0.75},
        {"cuda_graph": eager, "num_prefill_tokens": 7},
    ]
    for number, own in enumerate(figures, 1):
        groups = [decode, *others] if "num_prefill_tokens" in own else [decode]
        chain.apply(number, step(number, *groups, stats=stats(**own)))
    assert [
        (part.kind, part.cause, part.num_steps, part.num_tokens, part.scheduler)
        for part in chain.parts
    ] == [
        ("prefill", "", 1, 3, 0.001),
        ("host", "", 0, 0, 0.0),
        ("decode", "", 1, 1, 0.001),
        ("decode", "no_cuda_graph", 2, 2, 0.5),
        ("decode", "mixed_batch", 1, 1, 0.001),
    ]
    assert [part.others for part in chain.parts][-2:] == [{}, {"req-2": 7}]


def test_rejected_drafts_are_no_tokens_of_a_part() -> None:
    chain = Chain(RequestState("req-1", RequestMetrics(1.0, 1.0, None, None, None), [1]))
    drafted = update(1, tokens=[6, 7], computed=5, drafted=4, accepted=1)
    events: list[Event] = [
        arrival(1),
        step(0, full("req-1", 1, chunk=3), sequences=[update(1, tokens=[5])]),
        step(1, delta("req-1", 1, computed=3), sequences=[drafted]),
    ]
    for position, event in enumerate(events):
        chain.apply(position, event)
    assert [part.num_tokens for part in chain.parts if part.kind == "decode"] == [2]
