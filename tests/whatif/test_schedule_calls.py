"""Inputs of an asynchronous scheduler are assigned to its calls, not to the outputs."""

from unittest.mock import Mock

import msgspec

from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState
from seqtop.whatif.replay import Clock, ReplayOptions, WorkloadReplay
from seqtop.whatif.workload import read_workload
from seqtop.wire import codec
from seqtop.wire.messages import ControlCall, Event, RequestArrived, RequestFinished, Step
from tests.support.events import arrival, engine_info, step
from tests.support.recordings import append


def arrived(number: int, calls: int) -> RequestArrived:
    return msgspec.structs.replace(arrival(number), num_schedule_calls=calls)


def aborted(number: int, calls: int) -> RequestFinished:
    return RequestFinished(
        request_id=f"req-{number}",
        time=200.0,
        status=SequenceStatus.FINISHED_ABORTED,
        metrics=RequestMetrics(1.0, 1.0, None, None, None),
        num_schedule_calls=calls,
    )


def outputs(number: int, calls: int, *controls: ControlCall) -> Step:
    return step(number, num_schedule_calls=calls, control_calls=[*controls])


def test_inputs_belong_to_the_call_of_the_scheduler_that_saw_them_first() -> None:
    for first in (0, 700):  # a recording may start later than its engine
        reset = ControlCall(name="reset_prefix_cache", argument=True, num_schedule_calls=first + 2)
        events: list[Event] = [
            engine_info(),
            arrived(0, first),
            arrived(1, first + 1),
            arrived(2, first + 2),
            outputs(first, first + 2),  # two calls were before the first outputs
            outputs(first + 1, first + 3, reset),
            aborted(0, first + 2),  # before the third call, reported with the next outputs
            outputs(first + 2, first + 4),
            aborted(1, first + 4),  # after the fourth call
            outputs(first + 3, first + 4),  # nothing was left to schedule
        ]
        store = MemoryStore()
        append(store, [codec.encode(event) for event in events], EngineState())
        workload, scheduler = read_workload(store), Mock(**{"process_outputs.return_value": []})
        WorkloadReplay(workload, ReplayOptions(), Clock()).run(scheduler)
        called = [name for name, _, _ in scheduler.method_calls if name != "process_outputs"]
        assert " ".join(called) == (
            "add schedule add schedule add control abort schedule schedule"
        ), "the third request came before the first outputs"
        processed = [own.args[0] for own in scheduler.process_outputs.call_args_list]
        assert processed == [
            *(0, 0),  # before the first request, and before the first call
            *(0, 0),
            *(0, 1, 1, 1),  # before the third request, the reset and the abort
            2,
            4,  # all, at the end
        ]
        steps = workload.steps
        assert [inputs.arrived for inputs in steps] == [["req-0"], ["req-1"], ["req-2"], []]
        assert [inputs.aborted for inputs in steps] == [[], [], ["req-0"], []]
        assert [inputs.aborted_during for inputs in steps] == [[], [], [], ["req-1"]]
        assert [len(inputs.controls) for inputs in steps] == [0, 0, 1, 0]
        assert [inputs.num_processed for inputs in steps] == [0, 0, 1, 2]
