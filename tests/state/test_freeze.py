"""A still does not move."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import (
    ExecuteModelRequest,
    Logprob,
    RequestMetrics,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.state.freeze import freeze
from seqtop.wire import codec
from seqtop.wire.messages import (
    CachedBlocks,
    Heartbeat,
    Preemption,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
)
from tests.support.reducer_events import STATS


def play(state: EngineState, number: int, names: list[str], *, evict: bool) -> None:
    """A step of all `names`, arriving where they are new; then one of them ends."""
    for seq_id, name in enumerate(names):
        if name not in state.requests:
            state.apply(
                RequestArrived(
                    request_id=name,
                    arrival_time=1.0,
                    seq_ids=[100 * number + seq_id],
                    num_prompt_tokens=2,
                )
            )
    live = [name for name in names if state.requests[name].finish_reason is None]
    updates = [
        SequenceUpdate(
            seq_id=state.requests[name].seq_ids[0],
            status=SequenceStatus.WAITING if evict else SequenceStatus.RUNNING,
            num_computed_tokens=number,
            new_token_ids=[number],
            new_logprobs=[-1.0],
            top_logprobs=[{number: Logprob(-1.0)}],
            text_delta="x",
            new_blocks=[number],
        )
        for name in live
    ]
    groups: list[Any] = [
        SequenceGroupMetadataDelta({}, name, {}, False, token_chunk_size=1) for name in live
    ]
    preempted = [Preemption(request_id=name, mode="recompute", num_lost_tokens=1) for name in live]
    state.apply(
        Step(
            step=number,
            start_time=float(number),
            time=number + 0.5,
            execute=ExecuteModelRequest(groups),
            sequences=updates,
            stats=STATS,
            preemptions=preempted if evict else [],
            newly_cached_blocks=[
                CachedBlocks(request_id=name, seq_id=1, position=0, blocks=[number])
                for name in live
            ],
            uncached_blocks=[number - 1] if evict else [],
        )
    )
    if live:
        end = RequestMetrics(1.0, 2.0, None, None, None, finished_time=3.0)
        state.apply(
            RequestFinished(
                request_id=live[0],
                time=number + 0.6,
                status=SequenceStatus.FINISHED_STOPPED,
                metrics=end,
            )
        )
    state.apply(Heartbeat(time=number + 0.7, step=number))


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abcdef"), unique=True), st.booleans()), max_size=8
    ),
    st.integers(0, 8),
)
def test_a_still_is_what_the_state_was_and_stays_so(
    steps: list[tuple[list[str], bool]], taken_after: int
) -> None:
    state = EngineState(max_finished=3)
    taken, encoded = freeze(state), codec.encode(state)
    for number, (names, evict) in enumerate(steps):
        if number == taken_after:
            taken, encoded = freeze(state), codec.encode(state)
        play(state, number, names, evict=evict)
    assert codec.encode(taken) == encoded
