"""The decisions of a recorded run: counted again from random runs, and exact ones of short runs."""

import random
from collections import Counter
from typing import Any

import pytest

from seqtop.diff.run import RunDecisions, StepDecisions
from seqtop.sequence import ExecuteModelRequest, RequestMetrics, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.waits import wait_until
from seqtop.wire.arrays import Ints
from seqtop.wire.batch import request_tokens
from seqtop.wire.messages import (
    Event,
    RequestArrived,
    RequestFinished,
    Step,
    StreamingUpdate,
)
from tests.support.decided_runs import GAP, recorded
from tests.support.events import (
    arrival,
    delta,
    engine_info,
    full,
    preemption,
    step,
    update,
    wait_reason,
)
from tests.support.random_engine import RandomEngine


def decisions(*events: Event | None, **fields: Any) -> RunDecisions:
    return RunDecisions(recorded(events, **fields))


@pytest.mark.parametrize("seed", range(6))
def test_a_random_run_is_counted_again(seed: int) -> None:
    events = [*RandomEngine(seed, 60, num_blocks=16, output=(1, 20), prompt=(1, 60))]
    run, state = decisions(*events, max_finished=10_000), EngineState(max_finished=10_000)
    arrivals = [event for event in events if isinstance(event, RequestArrived)]
    steps = [event for event in events if isinstance(event, Step)]
    ends = {own.request_id: own for own in events if isinstance(own, RequestFinished)}
    for event in events:
        state.apply(event)
    names = [own.request_id for own in arrivals]
    request_of = {seq_id: own.request_id for own in arrivals for seq_id in own.seq_ids}
    num_sequences, outputs, lost = Counter(request_of.values()), Counter[str](), Counter[str]()
    preempted = Counter[str]()
    for own, found in zip(steps, run.steps, strict=True):
        for changes in own.sequences:
            if changes.parent_seq_id is not None:
                request_of[changes.seq_id] = request_of[changes.parent_seq_id]
                num_sequences[request_of[changes.seq_id]] += 1
            outputs[request_of[changes.seq_id]] += len(changes.new_token_ids)
        for change in own.preemptions:
            preempted[change.request_id] += 1
            lost[change.request_id] += change.num_lost_tokens
        sizes = {names[number]: size for number, size in found.chunks}
        sizes |= dict.fromkeys((names[number] for number in found.decodes), 1)
        parts = request_tokens(own).items()
        assert sizes == {name: part.total // part.num_sequences for name, part in parts}
        assert [names[number] for number, _, _ in found.preempted] == [
            change.request_id for change in own.preemptions
        ]
    assert [request.request_id for request in run.requests] == names
    for request, arrived in zip(run.requests, arrivals, strict=True):
        name, end = request.request_id, ends.get(request.request_id)
        known = state.requests[name]
        assert run.number(name) == names.index(name)
        assert request.end == (None if end is None else end.status.name)
        assert (request.num_prompt_tokens, request.priority) == (
            arrived.num_prompt_tokens,
            arrived.priority,
        )
        assert request.num_output_tokens == outputs[name]
        assert request.num_sequences == num_sequences[name] == len(known.seq_ids)
        assert request.num_preemptions == preempted[name] == known.num_preemptions
        assert request.num_lost_tokens == lost[name] == known.num_lost_tokens
        for moment in ("arrival_time", "first_scheduled_time", "first_token_time", "finished_time"):
            assert getattr(request.metrics, moment) == getattr(known.metrics, moment)
        waited = wait_until(state, known, state.time).total
        assert sum(request.seconds_waiting.values()) == pytest.approx(waited)
    assert run.num_output_tokens == outputs.total()
    assert run.num_preemptions == preempted.total()
    assert run.num_lost_tokens == lost.total()
    looked_up = [request for request in run.requests if request.num_cached_tokens is not None]
    assert run.num_cached_tokens == sum(request.num_cached_tokens or 0 for request in looked_up)
    assert run.num_admitted_tokens == sum(request.num_prompt_tokens for request in looked_up)
    assert run.num_served == sum(end.status.name != "FINISHED_ABORTED" for end in ends.values())
    assert run.duration == steps[-1].time - steps[0].start_time
    assert preempted, "nothing to count"


STOPPED, ABORTED = SequenceStatus.FINISHED_STOPPED, SequenceStatus.FINISHED_ABORTED


def ended(number: int, time: float, status: SequenceStatus = STOPPED) -> RequestFinished:
    metrics = RequestMetrics(float(number), 0.0, None, None, None)
    return RequestFinished(
        request_id=f"req-{number}", time=time, status=status, metrics=metrics, text_lengths=[]
    )


def of_step(found: StepDecisions) -> dict[str, Any]:
    """The parts of a step that have something."""
    parts = found._asdict()
    for name in ("position", "stats", "tokens"):
        del parts[name]
    nothing = {"moves": (0, 0, 0), "lookahead": (0, 1)}
    return {name: part for name, part in parts.items() if part != nothing.get(name, ())}


def test_the_decisions_of_each_step() -> None:
    swapped = ExecuteModelRequest(
        [delta("req-1", 1), delta("req-2", 2, 3, token_chunk_size=2)],
        blocks_to_swap_in=[(0, 1)],
        blocks_to_swap_out=[(1, 2), (2, 3)],
        blocks_to_copy=[(1, 2), (2, 3), (3, 4)],
        num_lookahead_slots=4,
        num_steps=5,
    )
    run = decisions(
        engine_info(),
        arrival(1),
        arrival(2),
        step(
            0,
            full("req-1", 1, chunk=3, cached=2),
            full("unknown", 9, chunk=5),
            wait_reasons=[wait_reason("req-2", "no_blocks", 3), wait_reason("unknown", "paused")],
            preemptions=[preemption("unknown", lost=9)],
        ),
        arrival(1),  # announced twice
        ended(1, 1.0),
        ended(7, 2.0),
        ended(0, 3.0),
        arrival(3),
        arrival(0),
        step(2, full("req-2", 2, chunk=3, cached=1), delta("req-1", 1), delta("req-1", 1)),
        ended(0, 4.0, ABORTED),
        ended(3, 5.0, ABORTED),
        step(
            3,
            execute=swapped,
            preemptions=[
                preemption("req-2", lost=4, by="req-1"),
                preemption("req-1", mode="swap", by="unknown"),
            ],
        ),
        StreamingUpdate(request_id="req-1", time=9.0, num_computed_tokens=0, num_prompt_tokens=3),
        StreamingUpdate(request_id="other", time=9.0, num_computed_tokens=0, num_prompt_tokens=3),
        step(4, delta("req-2", 2), delta("req-1", 1)),
        step(5, delta("req-2", 2), delta("req-1", 1)),
        step(6, delta("req-1", 1), delta("req-2", 2)),
        step(7),
    )
    assert [of_step(found) for found in run.steps] == [
        {
            "step": 0,
            "arrived": (0, 1),
            "admitted": ((0, 2),),
            "chunks": ((0, 1),),
            "waits": ((1, "no_blocks", 3),),
        },
        {
            "step": 2,
            "arrived": (2, 3),
            "ended": ((0, "FINISHED_STOPPED"),),
            "admitted": ((1, 1),),
            "chunks": ((1, 2),),
            "decodes": (0,),
        },
        {
            "step": 3,
            "ended": ((2, "FINISHED_ABORTED"), (3, "FINISHED_ABORTED")),
            "preempted": ((1, 0, "recompute"), (0, None, "swap")),
            "admitted": ((0, 0), (1, 0)),
            "chunks": ((1, 2),),
            "decodes": (0,),
            "moves": (1, 2, 3),
            "lookahead": (4, 5),
        },
        {"step": 4, "admitted": ((0, 0),), "decodes": (1, 0)},
        {"step": 5, "decodes": (1, 0)},
        {"step": 6, "decodes": (0, 1)},
        {"step": 7},
    ]
    assert [request.request_id for request in run.requests] == ["req-1", "req-2", "req-3", "req-0"]
    assert [request.metrics.finished_time for request in run.requests] == [1.0, None, 5.0, 4.0]
    assert (run.num_cached_tokens, run.num_admitted_tokens, run.num_served) == (3, 6, 1)
    assert (run.num_preemptions, run.num_lost_tokens, run.num_gaps) == (2, 4, 0)


def test_the_duration_is_from_the_first_start_to_the_latest_end() -> None:
    times = [(5.0, 5.5), (6.0, 9.0), (7.0, 8.0)]  # two steps at once, of which the first ends last
    steps = [step(number, start_time=a, time=b) for number, (a, b) in enumerate(times)]
    run = decisions(engine_info(), *steps)
    assert (run.duration, run.end_time) == (4.0, 9.0)
    assert decisions(engine_info(), step(0, start_time=5.0, time=4.0)).duration == 0.0
    assert decisions(engine_info()).duration == 0.0


def test_tokens_belong_to_the_request_of_their_sequence() -> None:
    """A sequence that was not announced is a fork, and of an unknown request it is none's."""
    sequences = [
        update(1, tokens=[5, 6]),
        update(7, tokens=[7], request_id="req-1"),
        update(2, tokens=[8], request_id="req-2"),
        update(8, tokens=[9], request_id="other"),
        update(9, tokens=[9]),
        update(7, request_id="req-1"),
    ]
    metrics = RequestMetrics(0.0, 0.5, 0.25, 0.5, 0.25)
    batches = {"req-1": metrics, "other": metrics}
    run = decisions(
        *(engine_info(), arrival(1), arrival(2)),
        step(0, sequences=sequences, metrics=batches),
        step(1, sequences=sequences[1:3]),
        step(2, sequences=sequences[1:3]),
    )
    assert run.num_output_tokens == 10
    found = [(own.num_output_tokens, own.num_sequences) for own in run.requests]
    assert found == [(5, 2), (3, 1)]
    assert [own.metrics == metrics for own in run.requests] == [True, False]
    assert [own.tokens for own in run.steps[1:]] == [hash(((7,), (8,)))] * 2


def test_prompts_are_known_by_their_tokens_or_else_by_their_text() -> None:
    arrivals = [arrival(number) for number in range(6)]
    arrivals[1].prompt = "another text of the same tokens"
    arrivals[2].prompt_token_ids = Ints.of([1, 2, 4])
    for changed in arrivals[3:]:
        changed.prompt_token_ids = Ints.of([])
    arrivals[4].prompt, arrivals[5].prompt = "", None
    hashes = [request.prompt_hash for request in decisions(engine_info(), *arrivals).requests]
    assert hashes[0] == hashes[1]
    assert len({*hashes[1:4]}) == 3
    assert None not in hashes[:4]
    assert hashes[4:] == [None, None]


def by_name(run: RunDecisions, found: StepDecisions) -> dict[str, Any]:
    """The decisions of a step with the ids of requests in place of their numbers."""
    ids = [request.request_id for request in run.requests]
    return {
        "step": found.step,
        "arrived": [ids[number] for number in found.arrived],
        "ended": sorted((ids[number], status) for number, status in found.ended),
        "preempted": [
            (ids[number], None if for_ is None else ids[for_], mode)
            for number, for_, mode in found.preempted
        ],
        "admitted": [(ids[number], cached) for number, cached in found.admitted],
        "chunks": [(ids[number], size) for number, size in found.chunks],
        "decodes": [ids[number] for number in found.decodes],
        "waits": [(ids[number], cause, missing) for number, cause, missing in found.waits],
        "others": (found.moves, found.lookahead, found.tokens),
    }


@pytest.mark.parametrize("seed", range(6))
def test_a_recording_that_begins_late_has_the_same_decisions(seed: int) -> None:
    """The state that it begins with says what the requests have done before."""
    events = [*RandomEngine(seed, 40, num_blocks=16, output=(1, 20), prompt=(1, 60))]
    whole, draw = decisions(*events, max_finished=10_000), random.Random(seed)
    places = [place for place, event in enumerate(events) if isinstance(event, Step)]
    number = draw.randrange(5, 30)
    late = decisions(*events, first=places[number] + 1, max_finished=10_000)
    assert [by_name(late, found) for found in late.steps] == [
        by_name(whole, found) for found in whole.steps[number + 1 :]
    ]
    assert (late.info, late.num_gaps) == (whole.info, 0)
    of_whole = {request.request_id: request for request in whole.requests}
    assert {request.request_id for request in late.requests} == of_whole.keys()
    for request in late.requests:
        known = of_whole[request.request_id]
        assert request.seconds_waiting == known.seconds_waiting
        for name in (
            *("num_prompt_tokens", "priority", "prompt_hash", "num_sequences", "end"),
            *("num_preemptions", "num_lost_tokens", "ttft", "e2e"),
        ):
            assert getattr(request, name) == getattr(known, name), name
        if request.num_sequences == 1:  # a fork begins with the output of another sequence
            assert request.num_output_tokens == known.num_output_tokens
    assert late.num_output_tokens < whole.num_output_tokens
    assert late.num_preemptions == sum(len(found.preempted) for found in late.steps)


def test_requests_from_before_the_first_step_arrive_at_it() -> None:
    events: list[Event] = [engine_info(), arrival(1), arrival(2), step(0), arrival(3), step(1)]
    arrived = [
        [found.arrived for found in decisions(*events, first=first).steps] for first in (0, 2, 3, 4)
    ]
    assert arrived == [[(0, 1), (2,)], [(0, 1), (2,)], [(0, 1), (2,)], [(2,)]]


def test_a_gap_is_counted_and_its_requests_are_read_from_the_state_behind_it() -> None:
    arrived: list[Event] = [engine_info(), arrival(1)]
    assert decisions(*arrived, GAP, step(0)).num_gaps == 0, "nothing has been compared before"
    run = decisions(*arrived, step(0), GAP, arrival(2), step(1), GAP, step(2))
    assert (run.num_gaps, [found.step for found in run.steps]) == (2, [0, 1, 2])
    assert [found.arrived for found in run.steps] == [(0,), (1,), ()]


@pytest.mark.parametrize("max_finished", [1, 2, 3, 4, 16])
def test_waits_are_read_before_a_state_drops_the_requests(max_finished: int) -> None:
    """Each request waits for the ten seconds of a step, which gives a reason or none."""
    events: list[Event] = [engine_info()]
    for number in range(20):
        begin, arrived = 1_000.0 + 10.0 * number, arrival(number)
        arrived.arrival_time = begin
        reasons = [wait_reason(f"req-{number}", "no_blocks")] if number % 2 else []
        times = {"start_time": begin, "time": begin + 10.0}
        events += [arrived, step(number, wait_reasons=reasons, **times)]
        events.append(ended(number, begin + 10.0))
    waits = [own.seconds_waiting for own in decisions(*events, max_finished=max_finished).requests]
    assert waits == [{"unknown": 10.0}, {"no_blocks": 10.0}] * 10
