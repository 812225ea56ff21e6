"""The workload of a recorded run: arrivals, answers and ends, and what cannot be replayed."""

from typing import Any

import pytest

from seqtop.sequence import Logprob, RequestMetrics, SamplingParams, SequenceStatus
from seqtop.whatif.workload import (
    Answer,
    Continuation,
    RecordedDraft,
    Workload,
    WorkloadError,
    WorkloadRequest,
    predecessors,
    read_workload,
)
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, StreamingUpdate
from tests.support.decided_runs import GAP, recorded
from tests.support.events import arrival, engine_info, step, update

STOPPED, ABORTED = SequenceStatus.FINISHED_STOPPED, SequenceStatus.FINISHED_ABORTED


def ended(number: int, time: float, status: SequenceStatus = STOPPED) -> RequestFinished:
    metrics = RequestMetrics(float(number), 0.0, None, None, None, time)
    return RequestFinished(
        request_id=f"req-{number}", time=time, status=status, metrics=metrics, text_lengths=[]
    )


def arrived_at(number: int, time: float, **fields: Any) -> RequestArrived:
    event = arrival(number)
    event.arrival_time = time
    for name, value in fields.items():
        setattr(event, name, value)
    return event


def read(*events: Event | None, first: int = 0) -> Workload:
    return read_workload(recorded(events, first=first))


def test_requests_join_at_the_steps_that_could_schedule_them() -> None:
    workload = read(
        *(engine_info(), arrived_at(1, 50.0), step(0), arrived_at(2, 99.0), arrived_at(3, 100.25)),
        *(step(1), ended(1, 101.5), step(2), arrived_at(4, 110.0), ended(2, 103.0, ABORTED)),
    )
    assert [(own.arrived, own.aborted, own.is_last) for own in workload.steps] == [
        (["req-1"], [], False),
        (["req-2", "req-3"], [], False),
        ([], [], True),
        (["req-4"], ["req-2"], True),
    ]
    last = workload.steps[-1]
    assert (last.start_time, last.end_time) == (102.5, 102.5)
    assert (last.num_prefill_tokens, last.num_decode_tokens) == (0, 0)
    assert [own.first_joined_at for own in workload.steps] == [50.0, 100.0, None, None]
    requests = workload.requests
    assert [own.joined_at for own in requests.values()] == [50.0, 100.0, 100.25, 110.0]
    assert [own.lag for own in requests.values()] == [0.0, 1.0, 0.0, 0.0]
    assert [own.ended_at for own in requests.values()] == [101.5, 103.0, None, None]
    assert [own.patience for own in requests.values()] == [None, 4.0, None, None]
    assert [own.is_cut for own in requests.values()] == [False, True, True, True]
    assert [own.answer.is_whole for own in requests.values()] == [True, False, False, False]
    assert workload.unfinished == ["req-3", "req-4"]
    assert workload.figures.num_steps == 3


def test_answers_are_stored_by_the_output_before() -> None:
    top = [{5: Logprob(-0.5, 1, "x")}, {6: Logprob(-0.25, 1, "y")}]
    first = update(1, tokens=[5], logprobs=[-0.5], drafted=3, accepted=None, top_logprobs=top[:1])
    more = update(1, tokens=[6, 7], logprobs=[-0.25, -1.0], drafted=4, accepted=1)
    last = update(1, tokens=[6], logprobs=[-0.25], top_logprobs=top[1:])
    workload = read(
        *(engine_info(), arrival(1)),
        *(step(number, sequences=[own]) for number, own in enumerate((first, more, last))),
    )
    assert workload.requests["req-1"].answer == Answer(
        token_ids=[5, 6, 7, 6],
        logprobs=[-0.5, -0.25, -1.0, -0.25],
        candidates={0: top[0], 3: top[1]},
        drafts={0: RecordedDraft(3, 0), 1: RecordedDraft(4, 1)},
    )


def test_beams_are_continued_from_their_outputs() -> None:
    beam = SamplingParams(extra_args={"beam_width": 2})
    fork = update(9, tokens=[6], logprobs=[-2.0], parent=1, request_id="req-1")
    workload = read(
        *(engine_info(), arrived_at(1, 1.0, sampling_params=beam)),
        step(0, sequences=[update(1, tokens=[5], logprobs=[-1.0])]),
        step(1, sequences=[fork, update(1, tokens=[7], logprobs=[-3.0])]),
        step(2, sequences=[update(9, tokens=[8], logprobs=[-4.0])]),
    )
    assert workload.requests["req-1"].answer == Answer(
        beams={
            0: [Continuation((), 5, -1.0)],
            1: [Continuation((5,), 6, -2.0), Continuation((5,), 7, -3.0)],
            2: [Continuation((5, 6), 8, -4.0)],
        }
    )


def test_a_recording_may_begin_before_the_first_step_or_when_all_have_ended() -> None:
    early: list[Event] = [
        engine_info(),
        arrived_at(1, 50.0),
        step(0),
        ended(1, 100.5),
        arrival(2),
        step(1),
    ]
    for first in (0, 1, 2):
        assert read(*early, first=first).requests.keys() == {"req-1", "req-2"}
    assert read(*early, first=4).requests.keys() == {"req-2"}
    with pytest.raises(WorkloadError, match="in the middle of a run: 1 request had not ended"):
        read(*early, first=3)


RUN: tuple[Event, ...] = (engine_info(), arrival(1), step(0), step(1))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (RUN[1:], "the recording does not describe its engine"),
        (RUN[:2], "the recording has no step"),
        ((*RUN, GAP), "messages are missing in the recording after 2 steps"),
        ((*RUN, engine_info(incarnation="two")), "the engine was started again after 2 steps"),
        ((*RUN[:2], engine_info(incarnation="two")), "the engine was started again after 0 steps"),
        (
            (engine_info(), step(0), engine_info(incarnation="two")),
            "the engine was started again after 1 steps",
        ),
        (
            (
                *RUN,
                StreamingUpdate(
                    request_id="req-1", time=1.0, num_computed_tokens=0, num_prompt_tokens=3
                ),
            ),
            "request req-1 is a streaming session, which cannot be replayed",
        ),
        ((*RUN, arrival(1)), "the id 'req-1' is used by several requests"),
        ((*RUN, arrived_at(2, 1.0, lora="poems")), "request req-2 uses a LoRA adapter"),
        ((*RUN, ended(2, 1.0)), "request req-2 ended, but did not arrive"),
        ((*RUN, step(2, sequences=[update(9)])), "sequence 9 belongs to no request"),
        (
            (*RUN, step(2, sequences=[update(9, parent=1, request_id="req-2")])),
            "sequence 9 was forked in an unknown request",
        ),
        ((engine_info(redacted=True), *RUN[1:]), "the recording is redacted"),
        ((engine_info(predicted_from="a"), *RUN[1:]), "is a prediction from a; use that one"),
    ],
)
def test_a_run_that_cannot_be_replayed_is_refused(
    events: tuple[Event | None, ...], reason: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        read(*events)
    assert reason in str(caught.value)


def test_an_engine_may_describe_itself_again() -> None:
    other = engine_info(max_num_seqs=9)
    assert read(*RUN, other).info == other
    assert read(engine_info(), *(engine_info(incarnation="two"),), *RUN[1:]).info is not None


@pytest.mark.parametrize(
    ("params", "status", "is_free"),
    [
        (None, STOPPED, False),
        (SamplingParams(temperature=1.0), STOPPED, True),
        (SamplingParams(temperature=1.0), ABORTED, False),
        (SamplingParams(temperature=1.0), SequenceStatus.FINISHED_LENGTH_CAPPED, False),
        (SamplingParams(temperature=1.0), None, False),
        (SamplingParams(temperature=0.0), STOPPED, False),
        (SamplingParams(temperature=1.0, seed=0), STOPPED, False),
        (SamplingParams(temperature=1.0, extra_args={"beam_width": 2}), STOPPED, False),
        (SamplingParams(temperature=1.0, extra_args={"other": 2}), STOPPED, True),
    ],
)
def test_a_request_that_samples_and_stops_without_a_seed_has_a_free_length(
    params: SamplingParams | None, status: SequenceStatus | None, is_free: bool
) -> None:
    own = WorkloadRequest(arrived_at(1, 1.0, sampling_params=params), Answer(), status)
    assert own.has_free_length is is_free
    assert Workload(engine_info(), {"a": own, "b": own}).num_free_lengths == 2 * is_free


@pytest.mark.parametrize(
    ("stop", "calls", "patience"),
    [(None, None, 4.0), (["."], None, 4.0), (None, 7, 4.0), (["."], 7, None)],
)
def test_an_abort_at_a_stop_string_is_no_impatience(
    stop: list[str] | None, calls: int | None, patience: float | None
) -> None:
    params = SamplingParams(stop=stop)
    own = WorkloadRequest(
        *(arrived_at(1, 1.0, sampling_params=params), Answer(), ABORTED),
        ended_at=5.0,
        num_schedule_calls=calls,
    )
    assert own.patience == patience
    own.ended_at = 0.5
    assert own.patience == (None if patience is None else 0.0)
    own.ended_at = None
    assert own.patience is None


def test_a_request_waits_for_the_last_one_that_ended_before_it() -> None:
    times = [(1.0, 3.0), (2.0, 4.0), (3.0, None), (5.0, 6.0), (5.5, 5.75), (6.0, 9.0), (7.0, 9.0)]
    requests = {
        f"req-{number}": WorkloadRequest(arrived_at(number, begin), Answer(), ended_at=end)
        for number, (begin, end) in enumerate(times)
    }
    assert predecessors(requests) == {
        "req-2": "req-0",
        "req-3": "req-1",
        "req-5": "req-3",
        "req-6": "req-4",
    }
