"""Observations come back from the bytes that are sent to the publisher's process."""

import msgspec
import pytest

from seqtop.adapters.observations import (
    Admitted,
    AllRequests,
    AnyObservation,
    Arrived,
    Counts,
    CurrentRequest,
    EngineStopping,
    Preempted,
    RequestEnded,
    Scheduled,
    Stepped,
    StreamingInput,
    WaitingRequest,
)

SCHEDULED = Scheduled(
    start_time=1.0,
    duration=0.1,
    preempted=[Preempted("one", 5, None)],
    admitted=[Admitted("two", 8, ([1, 2], [3]), 4)],
    appended=[("three", ([4], []))],
    wait_reasons=[("one", "no_blocks")],
)
COUNTS = Counts(2, 3, 1, 8, 4)
ARRIVED = Arrived("one", 1.0, "WAITING", 0, 3, [1, 2, 3], {"temperature": 0.5, "stop": ["x"]}, "l")


@pytest.mark.parametrize(
    "observation",
    [
        ARRIVED,
        StreamingInput("one", 1.0, [1, 2], 1),
        AllRequests(1.0, [CurrentRequest(ARRIVED, 2, [7], ([1],), True, True)], COUNTS, num_lost=2),
        Stepped(
            scheduled=[SCHEDULED],
            start_time=1.0,
            scheduler_time=0.1,
            execute_time=0.2,
            time=2.0,
            num_scheduled_tokens={"two": 4},
            num_draft_tokens={},
            output_ids=None,
            output_token_ids=[[7]],
            ended=[RequestEnded("four", "FINISHED_STOPPED", 7, 8, 9.5, ([5],))],
            released=["six"],
            running=["two", "three"],
            num_computed_tokens=[4, 5],
            tables=[("two", ([0, 2], [3]))],
            waiting=[WaitingRequest("five", "WAITING_FOR_REMOTE_KVS", 4, ([6],))],
            counts=COUNTS,
        ),
        EngineStopping(3.0, "shutdown"),
    ],
    ids=lambda observation: type(observation).__name__,
)
def test_an_observation_is_known_by_its_tag(observation: AnyObservation) -> None:
    encoded = msgspec.msgpack.encode(observation)
    assert msgspec.msgpack.decode(encoded, type=AnyObservation) == observation
