"""Objectives as gates: the percentiles of all requests of a run."""

import pytest

from seqtop.checks.background import BackgroundChecker
from seqtop.checks.gate import Outcome
from seqtop.gates.objective_gate import ObjectiveGate
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.slo import FIGURES, parse_objective
from seqtop.wire import codec
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, WaitReason
from tests.support.random_engine import RandomEngine
from tests.support.scripted import Script, ScriptedSource

ALL = "ttft=1us,itl=1us,tpot=1us,queue=1us,e2e=1us"


def outcomes(source: ScriptedSource, objective: str) -> list[Outcome]:
    gate = ObjectiveGate(parse_objective(objective))
    BackgroundChecker(source.history, stored="first", gates=[gate]).replay.run()
    return gate.outcomes()


def three_requests() -> Script:
    """One that is served after 0.4 s, one that waits 2 s so far, and one that is refused."""
    script = Script(ScriptedSource())
    script.arrive("quick", num_prompt=40)
    script.step(prefill={"quick": 40})
    for _ in range(5):
        script.step()
    script.step(stop={"quick": SequenceStatus.FINISHED_STOPPED})
    script.arrive("refused", num_prompt=4096)
    script.finish("refused", SequenceStatus.FINISHED_IGNORED)
    script.arrive("waits")
    reason = WaitReason(request_id="waits", cause="no_blocks", num_missing=2)
    script.step(waits=[reason])
    script.time += 2.0
    script.step(waits=[reason])
    return script


def test_a_request_that_still_waits_counts_with_its_age() -> None:
    source = three_requests().source
    (met,) = outcomes(source, "ttft=1s,p=50")
    assert (met.gate, met.result, met.limit) == ("TTFT p50 ≤ 1.00 s", "missed", 1.0)
    (missed,) = outcomes(source, "ttft=1s")
    state = source.state
    age = state.time - state.requests["waits"].metrics.arrival_time
    assert age > 2
    assert (missed.gate, missed.result) == ("TTFT ≤ 1.00 s", "missed")
    assert missed.value == pytest.approx(age)
    assert (missed.step, missed.request_id) == (state.step, "waits")
    phrases = missed.message.split("; ")
    assert phrases[0].startswith("the largest is ≥ 2.")
    assert phrases[1:] == [
        "beyond the limit: 1 of 2 requests (50%)",
        f"the longest is waits with {phrases[0].partition('≥ ')[2]}",
        "causes: no free blocks 1",
        "counted with their time so far: 1 request",
        "left out: 1 request that the engine refused",
    ]


def test_each_limit_has_an_outcome() -> None:
    found = outcomes(three_requests().source, "ttft=10s tpot=1ms e2e=1ms p=10")
    assert [(own.gate, own.result) for own in found] == [
        ("TTFT p10 ≤ 10.0 s", "met"),
        ("TPOT p10 ≤ 1.00 ms", "missed"),
        ("E2E p10 ≤ 1.00 ms", "missed"),
    ]
    assert "within the limit: all of 2 requests" in found[0].message
    assert "left out: 1 request without a TPOT" in found[1].message


def test_a_figure_that_no_request_has_is_unknown() -> None:
    script = Script(ScriptedSource())
    script.arrive("new")
    script.step()
    known, found = outcomes(script.source, "tpot=1s,ttft=1s")
    assert (found.result, found.value) == ("unknown", None)
    assert found.message == "none of 1 request has a known TPOT"
    assert known.result == "met"
    assert "≥" in known.message


def expected(events: list[Event], figure: str) -> dict[str, float]:
    """The time of each request of a run from its start, from its messages alone."""
    arrived = {own.request_id: own for own in events if isinstance(own, RequestArrived)}
    ended = {own.request_id: own for own in events if isinstance(own, RequestFinished)}
    metrics: dict[str, RequestMetrics] = {}
    state = EngineState(max_finished=100_000)
    for event in events:
        state.apply(event)
    times = {}
    for name in arrived:
        metrics[name] = own = state.requests[name].metrics
        if name in ended and ended[name].status is SequenceStatus.FINISHED_IGNORED:
            continue
        is_served = name in ended and ended[name].status is not SequenceStatus.FINISHED_ABORTED
        until = own.finished_time if own.finished_time is not None else state.time
        counts = [
            len(state.sequences[id_].output_token_ids) for id_ in state.requests[name].seq_ids
        ]
        if figure == "ttft":
            first = own.first_token_time
            times[name] = (until if first is None else first) - own.arrival_time
        elif figure == "e2e":
            times[name] = until - own.arrival_time
        elif figure == "tpot" and own.first_token_time is not None:
            spans = []
            for count in counts:
                if is_served and count > 1:
                    spans.append((until - own.first_token_time) / (count - 1))
                elif not is_served and count:
                    so_far = (own.last_token_time - own.first_token_time) / max(count - 1, 1)
                    spans.append(max((until - own.first_token_time) / count, so_far))
            if spans:
                times[name] = max(spans)
    return times


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("figure", ["ttft", "e2e", "tpot"])
def test_the_figures_are_those_of_the_messages(seed: int, figure: str) -> None:
    events = [*RandomEngine(seed, 120, num_blocks=24)]
    times = expected(events, figure)
    ordered = sorted(times.values())
    limit = ordered[len(ordered) // 2]
    (found,) = outcomes(ScriptedSource(*events, max_finished=4), f"{figure}={limit:.9f}")
    assert found.value == pytest.approx(ordered[-1])
    num_beyond = sum(time > float(f"{limit:.9f}") for time in ordered)
    assert f"beyond the limit: {num_beyond} of {len(ordered)} requests " in found.message
    place = (len(ordered) - 1) * 0.9
    low = ordered[int(place)]
    high = ordered[min(int(place) + 1, len(ordered) - 1)]
    (p90,) = outcomes(ScriptedSource(*events), f"{figure}=1us,p=90%")
    assert p90.value == pytest.approx(low + (place - int(place)) * (high - low))
    assert p90.gate == f"{FIGURES[figure]} p90 ≤ 1 µs"


def test_a_request_that_ended_before_the_run_does_not_count_and_one_that_ends_in_a_gap_does() -> (
    None
):
    script = Script(ScriptedSource())
    for name in ("before", "during", "lost"):
        script.arrive(name, num_prompt=20)
    script.step(prefill={"before": 20, "during": 20})
    script.step(stop={"before": SequenceStatus.FINISHED_STOPPED})
    begin = copied(script.source.state)
    script.arrive("new", num_prompt=20)
    script.step(prefill={"new": 20}, decode=[])
    ends = dict.fromkeys(("during", "new"), SequenceStatus.FINISHED_STOPPED)
    script.step(stop=ends)
    after = copied(script.source.state)
    for seq_id in after.requests.pop("lost").seq_ids:
        del after.sequences[seq_id]
    gate = ObjectiveGate(parse_objective("e2e=1ms"))
    gate.start(0, begin)
    gate.stop()
    gate.start(9, after)
    (found,) = gate.outcomes()
    assert "beyond the limit: 3 of 3 requests" in found.message
    assert "counted with their time so far: 1 request" in found.message


def copied(state: EngineState) -> EngineState:
    return codec.decode(codec.encode(state), EngineState)
