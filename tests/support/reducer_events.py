"""Short events, written by hand, for tests of the reducer."""

from typing import Any

from seqtop.sequence import (
    RequestMetrics,
    SamplingParams,
    SequenceData,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    RequestArrived,
    RequestFinished,
    Step,
)
from tests.support import events
from tests.support.events import update

WAITING, RUNNING = SequenceStatus.WAITING, SequenceStatus.RUNNING


def arrived(name: str, seq_id: int, *, time: float = 10.0, prompt: str = "abc") -> RequestArrived:
    return RequestArrived(
        request_id=name,
        arrival_time=time,
        seq_ids=[seq_id],
        num_prompt_tokens=len(prompt),
        prompt=prompt,
        prompt_token_ids=Ints.of(range(len(prompt))),
        sampling_params=SamplingParams(max_tokens=5),
    )


def full(name: str, seq_id: int, table: list[int], *, chunk: int, do_sample: bool = True) -> Any:
    return events.full(
        name,
        seq_id,
        chunk=chunk,
        data=SequenceData.from_seqs([0, 1, 2]),
        sampling_params=SamplingParams(max_tokens=5),
        block_tables={seq_id: table},
        do_sample=do_sample,
    )


def delta(name: str, seq_id: int, tokens: list[int], computed: int) -> Any:
    return events.delta(name, seq_id, tokens=tokens, computed=computed)


STATS = events.stats(
    num_running=1,
    num_used_blocks=2,
    num_free_blocks=6,
    num_prefill_tokens=3,
    num_decode_tokens=1,
    scheduler_time=0.25,
    model_forward_time=0.5,
    model_execute_time=1.0,
)


def step(number: int, *groups: Any, **fields: Any) -> Step:
    times = {"start_time": 20.0 + number, "time": 20.5 + number, "stats": STATS}
    return events.step(number, *groups, **(times | fields))


def metrics(**changes: Any) -> RequestMetrics:
    values = {
        "arrival_time": 10.0,
        "last_token_time": 20.5,
        "first_scheduled_time": 20.0,
        "first_token_time": 20.5,
        "time_in_queue": 10.0,
    }
    return RequestMetrics(**(values | changes))


def prefilled() -> EngineState:
    """One request that has been prefilled and has its first token."""
    state = EngineState()
    state.apply(arrived("a", 1))
    state.apply(
        step(
            0,
            full("a", 1, [7], chunk=3),
            sequences=[update(1, RUNNING, 3, tokens=[5], logprobs=[-0.5], text="Hi")],
            metrics={"a": metrics(scheduler_time=0.25)},
        )
    )
    return state


def finish(state: EngineState) -> None:
    """Finishes request `a` of `prefilled`."""
    state.apply(
        RequestFinished(
            request_id="a", time=21.0, status=SequenceStatus.FINISHED_ABORTED, metrics=metrics()
        )
    )
