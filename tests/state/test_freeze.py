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
    PrefixMiss,
    RequestArrived,
    RequestFinished,
)
from tests.support import events
from tests.support.events import update
from tests.support.reducer_events import RUNNING, STATS, delta, prefilled, step


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
        update(
            state.requests[name].seq_ids[0],
            SequenceStatus.WAITING if evict else SequenceStatus.RUNNING,
            number,
            tokens=[number],
            logprobs=[-1.0],
            top_logprobs=[{number: Logprob(-1.0)}],
            text="x",
            blocks=[number],
        )
        for name in live
    ]
    groups: list[Any] = [
        SequenceGroupMetadataDelta({}, name, {}, False, token_chunk_size=1) for name in live
    ]
    preempted = [events.preemption(name, lost=1) for name in live]
    state.apply(
        events.step(
            number,
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


def test_later_forks_drafts_and_reasons_are_not_in_a_still() -> None:
    state = prefilled()
    reason = events.wait_reason("a", "no_blocks")
    state.apply(step(1, wait_reasons=[reason]))
    taken, encoded = freeze(state), codec.encode(state)
    misses = [PrefixMiss(cause="new_tokens", num_tokens=2)]
    fork = update(2, RUNNING, 3, request_id="a", parent=1, prefix_misses=misses)
    row = update(1, RUNNING, 4, drafted=2, group_block_tables=[[5]])
    state.apply(step(2, sequences=[fork, row]))
    decoded = update(2, tokens=[6], text="!")
    state.apply(step(3, delta("a", 2, [], 3), sequences=[decoded]))
    assert codec.encode(taken) == encoded
    assert taken.requests["a"].seq_ids == [1]
