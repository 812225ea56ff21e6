"""Holders of what others wait for: shared blocks, ended requests, sequence slots, adapters."""

from typing import Any

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, holdings, snapshot
from seqtop.state.freeze import freeze
from seqtop.state.holdings import Holding, Holdings
from seqtop.state.wait_graph import describe, unblocking, wait_graph
from seqtop.wire.batch import request_tokens
from seqtop.wire.messages import Chunk, RequestFinished
from tests.support import events
from tests.support.events import update, wait_reason
from tests.support.reducer_events import arrived, metrics

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING
ENDED = SequenceStatus.FINISHED_STOPPED


def runs(seq_id: int, table: list[int], status: SequenceStatus = RUNNING, **fields: Any) -> Any:
    chunk = Chunk(num_tokens=3, num_computed_tokens=0, is_prompt=True)
    name = f"req-{seq_id}"
    return update(seq_id, status, 3, table=table, request_id=name, chunk=chunk, **fields)


def state_of(*updates: Any, num_requests: int = 4, **fields: Any) -> EngineState:
    """Three requests run, or what the updates say, and the last one waits for two blocks."""
    state = EngineState()
    state.apply(events.engine_info(num_reserved_blocks=1))
    for number in range(1, num_requests + 1):
        state.apply(arrived(f"req-{number}", number))
    used = len({block for own in updates for block in own.block_table})
    state.apply(
        events.step(
            1,
            execute=None,
            sequences=[*updates],
            wait_reasons=[wait_reason(f"req-{num_requests}", "no_blocks", 2)],
            stats=events.stats(num_free_blocks=0, num_used_blocks=used),
            **fields,
        )
    )
    return state


def test_an_abort_frees_only_the_blocks_that_no_other_table_names() -> None:
    """Request 1 has the most blocks, but request 2 has all but one of them, too."""
    state = state_of(
        runs(1, [1, 2, 3, 4]), runs(2, [1, 2, 3, 5]), runs(3, [6, 7], group_block_tables=[[8, 8]])
    )
    assert holdings.num_freed_blocks(state) == {"req-1": (4, 1), "req-2": (4, 1), "req-3": (3, 3)}
    graph = wait_graph(state, state.requests["req-4"])
    assert [(own.request_id, own.amount, own.num_freed) for own in graph.holders] == [
        ("req-1", 4, 1),
        ("req-2", 4, 1),
        ("req-3", 3, 3),
    ]
    assert unblocking(graph) == "Aborting req-3 frees 3 blocks."


def test_blocks_shared_with_the_one_that_waits_are_not_freed_for_it() -> None:
    state = state_of(runs(1, [1, 2]), update(2, WAITING, 0, table=[1]), num_requests=2)
    graph = wait_graph(state, state.requests["req-2"])
    assert unblocking(graph) == "Aborting req-1 frees 1 block, of 2 that are missing."


def test_an_ended_request_holds_its_blocks_until_its_end_is_announced() -> None:
    state = state_of(runs(1, [1, 2, 3]), runs(2, [4]))
    ended = update(1, ENDED, 3, request_id="req-1")
    state.apply(events.step(2, execute=None, sequences=[ended]))
    assert holdings.has_ended(state, state.requests["req-1"])
    assert [request.request_id for request in holdings.holders(state)] == ["req-1", "req-2"]
    reasons = [wait_reason("req-4", "no_blocks", 2)]
    state.apply(events.step(3, execute=None, wait_reasons=reasons, sequences=[runs(2, [4])]))
    graph = wait_graph(state, state.requests["req-4"])
    assert (graph.source, graph.holders[0].request_id) == ("holders", "req-1")
    assert graph.holders[0].detail == "has ended, and its blocks are held"
    assert unblocking(graph) == "Aborting req-2 frees 1 block, of 2 that are missing."
    assert "req-1 and req-2 hold some" in describe(graph)
    ending = metrics(finished_time=102.5)
    state.apply(RequestFinished(request_id="req-1", time=102.5, status=ENDED, metrics=ending))
    assert [request.request_id for request in holdings.holders(state)] == ["req-2"]


def test_an_idle_session_has_a_sequence_slot() -> None:
    idle = update(1, WAITING, 3, engine_status="WAITING_FOR_STREAMING_REQ", request_id="req-1")
    state = state_of(runs(1, [1, 2]), runs(2, [3]))
    state.apply(events.step(2, execute=None, sequences=[idle]))
    slots = {own.request_id: holdings.num_slots(state, own) for own in holdings.holders(state)}
    assert slots == {"req-1": 1, "req-2": 1}


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("no_blocks", Holding({"req-1": 4, "req-2": 2}, 3, 0)),
        ("seq_limit", Holding({"req-1": 1, "req-2": 1}, 0, 6)),
        ("token_budget", Holding({"req-1": 3, "req-2": 3}, 0, 122)),
        ("lora_slots", Holding({})),
        ("paused", Holding()),
    ],
)
def test_holdings_of_a_step(cause: str, expected: Holding) -> None:
    """Those of its beginning and of its end: request 1 ends in the step."""
    state = state_of(runs(1, [1, 2, 3, 4]), runs(2, [5]))
    step = events.step(
        2,
        execute=None,
        sequences=[runs(1, [], ENDED), runs(2, [5, 6])],
        wait_reasons=[wait_reason("req-4", "no_blocks", 2)],
        stats=events.stats(num_free_blocks=4, num_used_blocks=9),
    )
    own = Holdings(state, step, request_tokens(step))
    state.apply(step)
    own.end(state)
    assert own.of(cause) == expected


def test_the_holders_of_a_copy_and_of_a_late_viewer() -> None:
    state, late = state_of(runs(1, [1, 2]), runs(2, [3])), EngineState()
    late.apply(snapshot.take(state))
    frozen = freeze(state)
    ended = [update(number, ENDED, 3, table=[]) for number in (1, 2)]
    state.apply(events.step(2, execute=None, sequences=ended))
    assert not state.holders
    assert late.holders.keys() == frozen.holders.keys() == {"req-1", "req-2"}
    assert late.in_queue.keys() == frozen.in_queue.keys() == {"req-3", "req-4"}


def test_amounts_count_shared_blocks_of_one_request_once_and_name_the_largest_first() -> None:
    fork = update(9, RUNNING, 3, table=[1, 2, 8], request_id="req-1", parent=1)
    state = state_of(runs(1, [1, 2, 3]), runs(2, [4, 5, 6, 7, 10]), fork)
    assert [*holdings.amounts(state, "no_blocks").items()] == [("req-2", 5), ("req-1", 4)]
    assert [*holdings.amounts(state, "seq_limit").items()] == [("req-1", 2), ("req-2", 1)]
    state.requests["req-1"].lora, state.requests["req-2"].lora = "x", "y"
    assert holdings.adapters(state, than="y") == {"x": ["req-1"]}
    assert holdings.amounts(state, "lora_slots", "x") == {"req-2": 1}


def test_of_an_unknown_engine_every_block_counts() -> None:
    state = EngineState()
    state.apply(arrived("req-1", 1))
    state.sequences[1].block_table = [0, 3]
    request = state.requests["req-1"]
    assert holdings.blocks(state, request) == {(0, 0), (0, 3)}
    assert holdings.num_blocks(state, request) == 2
