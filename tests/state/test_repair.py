"""A state that missed messages, after the list of what is unfinished."""

from typing import Any

import msgspec
import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import Span
from seqtop.state.waits import wait_until
from seqtop.wire.messages import (
    CachedBlocks,
    Heartbeat,
    InFlight,
    RequestArrived,
    SequenceUpdate,
    WaitReason,
)
from tests.support.reducer_events import (
    RUNNING,
    WAITING,
    arrived,
    finish,
    full,
    metrics,
    prefilled,
    step,
    update,
)

TIME = 30.0


def repaired(
    state: EngineState, requests: list[RequestArrived], *sequences: SequenceUpdate, **more: Any
) -> EngineState:
    """`state` after an `InFlight` of step 9, with as many anomalies as before."""
    num_anomalies = state.num_anomalies
    stats = step(9).stats
    state.apply(
        InFlight(
            time=TIME, step=9, stats=stats, requests=requests, sequences=list(sequences), **more
        )
    )
    assert (state.step, state.time, state.stats) == (9, TIME, stats)
    assert state.num_anomalies == num_anomalies
    assert sum(state.num_by_status) == len(state.sequences)
    return state


def spans(state: EngineState) -> list[tuple[str, float, float | None]]:
    return [(each.kind, each.start, each.end) for each in state.requests["a"].spans]


def test_what_is_not_named_has_ended_unless_its_end_is_known() -> None:
    state = prefilled()
    for name, seq_id in (("b", 2), ("c", 3)):
        state.apply(arrived(name, seq_id))
    finish(state)
    repaired(
        state, [arrived("c", 3), arrived("d", 4)], update(3, WAITING, 0), update(4, WAITING, 0)
    )
    assert list(state.requests) == ["a", "c", "d"]
    assert list(state.sequences) == [1, 3, 4]
    assert state.requests["a"].finish_reason == "abort"


def test_a_sequence_is_replaced_as_a_whole() -> None:
    state = prefilled()
    assert state.num_output_tokens == 1
    update_ = update(
        1, RUNNING, 5, new_token_ids=[5, 6], new_logprobs=[-0.5, -1.0], text_delta="Hi!",
        block_table=[7, 8],
    )  # fmt: skip
    reason = WaitReason(request_id="a", cause="no_blocks", num_missing=1)
    state.apply(step(1, wait_reasons=[reason]))
    repaired(
        state,
        [msgspec.structs.replace(arrived("a", 1), metrics=metrics(time_in_queue=3.0))],
        update_,
    )
    sequence = state.sequences[1]
    assert list(sequence.output_token_ids) == [5, 6]
    assert (sequence.text, sequence.cumulative_logprob) == ("Hi!", -1.5)
    assert (sequence.block_table, sequence.num_computed_tokens) == ([7, 8], 5)
    assert state.num_output_tokens == 2
    assert state.requests["a"].metrics.time_in_queue == 3.0
    assert state.requests["a"].wait_reason is None


def test_a_sequence_that_its_request_has_no_more_is_removed() -> None:
    state = prefilled()
    state.apply(
        step(1, sequences=[update(5, RUNNING, 3, request_id="a", parent_seq_id=1, block_table=[7])])
    )
    assert list(state.requests["a"].seq_ids) == [1, 5]
    repaired(state, [arrived("a", 1)], update(1, RUNNING, 3))
    assert list(state.requests["a"].seq_ids) == list(state.sequences) == [1]


def test_the_prefix_cache_is_that_of_the_list() -> None:
    state = prefilled()
    cached = [CachedBlocks(request_id="a", seq_id=1, blocks=[4, 9], position=2)]
    repaired(state, [arrived("a", 1)], update(1, RUNNING, 3), cached_blocks=cached)
    assert state.cached_blocks is not None
    assert {block: each.position for block, each in state.cached_blocks.items()} == {4: 2, 9: 3}
    repaired(state, [arrived("a", 1)], update(1, RUNNING, 3))
    assert state.cached_blocks is None


@pytest.mark.parametrize(
    ("last", "status", "num_computed", "expected"),
    [
        # In the same phase as before.
        (Span("decode", 20.0, 21.0), RUNNING, 4, []),
        (Span("prefill", 20.0, 21.0), RUNNING, 2, []),
        # In the next one, which began where the last is known to have ended.
        (Span("prefill", 20.0, 21.0), RUNNING, 3, [("decode", 21.0, TIME)]),
        (Span("preempted", 20.0, 21.0), RUNNING, 2, [("prefill", 21.0, TIME)]),
        (Span("preempted", 20.0, None), RUNNING, 3, [("decode", TIME, TIME)]),
        # Preempted during the loss, when is not known exactly.
        (Span("decode", 20.0, 21.0), WAITING, 0, [("preempted", 21.0, None)]),
        (Span("prefill", 20.0, 21.0), WAITING, 0, [("preempted", 21.0, None)]),
        (Span("decode", 20.0, None), WAITING, 0, [("preempted", TIME, None)]),
        (Span("preempted", 20.0, None), WAITING, 0, []),
        # Neither waits nor runs.
        (Span("decode", 20.0, 21.0), SequenceStatus.SWAPPED, 0, []),
    ],
)
def test_the_last_span_agrees_with_the_status(
    last: Span,
    status: SequenceStatus,
    num_computed: int,
    expected: list[tuple[str, float, float | None]],
) -> None:
    state = prefilled()
    state.requests["a"].spans = [Span("queued", 10.0, 20.0), msgspec.structs.replace(last)]
    repaired(state, [arrived("a", 1)], update(1, status, num_computed))
    assert spans(state)[2:] == expected
    request = state.requests["a"]
    is_preempted = "preempted" in [kind for kind, *_ in expected]
    assert (request.queue_turn, request.wait.since) == (
        (-2, expected[0][1]) if is_preempted else (1, None)
    )


def test_a_request_that_was_queued_has_its_first_span_ended() -> None:
    state = EngineState()
    state.apply(arrived("a", 1))
    state.apply(arrived("b", 2))
    arrival = msgspec.structs.replace(arrived("a", 1), metrics=metrics(first_scheduled_time=25.0))
    repaired(state, [arrival, arrived("b", 2)], update(1, RUNNING, 3), update(2, RUNNING, 2))
    assert spans(state) == [("queued", 10.0, 25.0), ("decode", 25.0, TIME)]
    wait, other = (state.requests[name].wait for name in "ab")
    assert (wait.since, wait.total) == (None, 15.0)
    assert (other.since, other.total) == (None, TIME - 10.0), "its end is not known"


def test_the_first_sequence_determines_the_phase() -> None:
    state = prefilled()
    fork = update(5, RUNNING, 3, request_id="a", parent_seq_id=1)
    state.apply(step(1, sequences=[fork]))
    arrival = msgspec.structs.replace(arrived("a", 1), seq_ids=[1, 5])
    repaired(state, [arrival], update(1, RUNNING, 3), update(5, WAITING, 0))
    assert spans(state)[-1] == ("decode", 20.5, TIME)


def test_reasons_to_wait_from_before_the_loss_are_no_longer_valid() -> None:
    state = EngineState()
    state.apply(arrived("a", 1, time=20.0))
    state.apply(step(0, wait_reasons=[WaitReason(request_id="a", cause="no_blocks")]))
    state.apply(step(1, wait_reasons=[WaitReason(request_id="a", cause="no_blocks")]))
    repaired(state, [arrived("a", 1)], update(1, WAITING, 0))
    wait = wait_until(state, state.requests["a"], 40.0)
    assert (wait.total, wait.by_cause) == (20.0, {"no_blocks": 1.0})
    assert list(state.apply(step(10))) == []


def test_all_that_was_named_or_dropped_has_changed() -> None:
    state = prefilled()
    fork = update(5, RUNNING, 3, request_id="a", parent_seq_id=1)
    state.apply(step(1, sequences=[fork]))
    state.apply(arrived("b", 2))
    event = InFlight(
        time=TIME,
        step=9,
        stats=step(9).stats,
        requests=[arrived("a", 1), arrived("c", 3)],
        sequences=[update(1, RUNNING, 3), update(3, WAITING, 0)],
    )
    assert sorted(state.apply(event)) == [1, 2, 3, 5]
    assert [*state.num_by_status[:2], sum(state.num_by_status)] == [1, 1, 2]


def test_a_total_of_tokens_is_not_negative() -> None:
    """Tokens that full metadata bring along are not in it."""
    state = EngineState()
    group = full("a", 1, [7], chunk=1)
    for token in (5, 6):
        group.seq_data[1].append_token_id(token, -0.5)
    state.apply(step(0, group))
    repaired(state, [arrived("a", 1)], update(1, RUNNING, 3, new_token_ids=[5]))
    assert state.num_output_tokens == 0


def test_requests_without_a_sequence_and_finished_ones_keep_their_spans() -> None:
    state = prefilled()
    finish(state)
    before = spans(state)
    empty = msgspec.structs.replace(arrived("b", 2), seq_ids=[])
    repaired(state, [arrived("a", 1), empty], update(1, WAITING, 0))
    assert spans(state) == before
    assert [span.kind for span in state.requests["b"].spans] == ["queued"]


def test_the_clock_does_not_go_back() -> None:
    state = prefilled()
    state.apply(Heartbeat(time=50.0, step=0))
    state.apply(InFlight(time=TIME, step=9, stats=step(9).stats, requests=[], sequences=[]))
    assert (state.time, state.step) == (50.0, 9)
