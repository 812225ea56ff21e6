"""Members of the batch of a step, and their tokens."""

from typing import Any

import pytest

from seqtop.checks.checker import Checker
from seqtop.sequence import (
    ExecuteModelRequest,
    RequestMetrics,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.wire.batch import (
    block_moves,
    full_metadata_of,
    members,
    metadata_of,
    request_tokens,
    scheduled_requests,
)
from seqtop.wire.messages import Chunk, Event, RequestFinished, Step
from tests.support.events import arrival, delta, full, step, update
from tests.support.random_engine import RandomEngine

RUNNING = SequenceStatus.RUNNING


def test_members_agree_with_the_state_after_each_step() -> None:
    num_members, kinds = 0, set()
    for seed in range(5):
        state = EngineState()
        for event in RandomEngine(seed, 60):
            state.apply(event)
            if not isinstance(event, Step):
                continue
            for member in members(event):
                sequence = state.sequences[member.seq_id]
                if sequence.last_step != event.step:
                    continue  # it was removed, and its id is used again
                assert sequence.request_id == member.request_id
                assert sequence.num_computed_tokens == member.num_computed_tokens
                assert sequence.status is member.status
                kinds.add((member.is_prompt, member.update is None, member.num_tokens > 1))
                num_members += 1
    assert num_members > 1_000
    assert {kind[0] for kind in kinds} == {True, False}


def test_a_delta_says_that_its_sequence_runs_and_advances() -> None:
    (member,) = members(step(1, delta("a", 1, computed=3)))
    assert (member.request_id, member.seq_id, member.is_prompt) == ("a", 1, False)
    assert (member.num_tokens, member.num_computed_before, member.num_computed_tokens) == (1, 3, 4)
    assert (member.status, member.update, member.num_cached_tokens) == (RUNNING, None, None)


def test_an_update_overrides_what_the_delta_says() -> None:
    ended = update(1, SequenceStatus.FINISHED_STOPPED, 9, tokens=[5])
    (member,) = members(step(1, delta("a", 1, computed=3), sequences=[ended]))
    assert member.update is ended
    assert (member.status, member.num_computed_tokens) == (SequenceStatus.FINISHED_STOPPED, 9)


def test_tokens_found_in_the_prefix_cache_are_not_computed() -> None:
    (member,) = members(step(1, full("a", 1, chunk=40, cached=32)))
    assert (member.is_prompt, member.chunk, member.num_tokens) == (True, 40, 8)
    assert (member.num_cached_tokens, member.num_computed_tokens) == (32, 40)
    # An engine whose chunk is without them gives the computed tokens after the lookup.
    found = update(1, cached=32)
    chunk = delta("a", 1, computed=32, is_prompt=True, token_chunk_size=8)
    (member,) = members(step(1, chunk, sequences=[found]))
    assert (member.num_tokens, member.num_computed_tokens) == (8, 40)


def test_a_member_computes_as_many_tokens_as_its_iterations_and_drafts() -> None:
    several = update(8, computed=9, tokens=[1, 2, 3, 4])
    drafted = update(9, computed=5, tokens=[1, 2], drafted=4, accepted=1)
    groups = [delta("a", 8, computed=5), delta("b", 9, computed=3)]
    first, second = members(step(1, *groups, sequences=[several, drafted]))
    assert (first.num_tokens, first.num_kept_tokens) == (4, 4)
    assert (second.num_tokens, second.num_kept_tokens) == (5, 2)


def test_each_sequence_of_a_group_is_a_member_and_others_are_not() -> None:
    updates = [
        update(1, tokens=[4]),
        update(3, SequenceStatus.WAITING, table=[]),
        update(4, RUNNING, request_id="a", parent=1, table=[7]),
    ]
    batch = step(1, delta("a", 1, 2), delta("b", 5), sequences=updates)
    assert [(member.request_id, member.seq_id) for member in members(batch)] == [
        ("a", 1), ("a", 2), ("b", 5),
    ]  # fmt: skip
    assert list(scheduled_requests(batch)) == ["a", "b"]


def test_an_engine_without_metadata_gives_chunks() -> None:
    """Its steps lead to the state that the same steps with deltas lead to."""
    with_deltas, with_chunks = EngineState(), EngineState()
    for state in (with_deltas, with_chunks):
        state.apply(arrival(1))
    output: dict[str, Any] = {"seq_id": 1, "tokens": [5], "text": "x", "blocks": [2]}
    prefill = delta("req-1", 1, computed=0, is_prompt=True, token_chunk_size=3)
    with_deltas.apply(step(0, prefill, sequences=[update(**output)]))
    with_deltas.apply(step(1, delta("req-1", 1), sequences=[update(**output)]))
    for number, chunk in enumerate(
        (
            Chunk(num_tokens=3, num_computed_tokens=0, is_prompt=True),
            Chunk(num_tokens=1, num_computed_tokens=3),
        )
    ):
        event = step(number)
        event.execute = None
        event.sequences = [
            update(**output, request_id="req-1", chunk=chunk),
            update(8, request_id="req-1", is_removed=True),
        ]
        (member,) = members(event)
        assert (member.request_id, member.seq_id, member.is_prompt, member.num_tokens) == (
            "req-1", 1, chunk.is_prompt, chunk.num_tokens,
        )  # fmt: skip
        assert list(scheduled_requests(event)) == ["req-1"]
        assert metadata_of(event, "req-1") is None
        assert block_moves(event) == ([], [], [])
        with_chunks.apply(event)
    assert with_chunks == with_deltas


def test_a_chunk_changes_no_ended_or_foreign_sequence() -> None:
    """As with deltas, which a viewer refuses for the same reasons."""
    state = EngineState()
    for number in (1, 2):
        state.apply(arrival(number))
    foreign, ended = step(0), step(1)
    foreign.execute = ended.execute = None
    chunk = Chunk(num_tokens=3, num_computed_tokens=0, is_prompt=True)
    foreign.sequences = [update(2, request_id="req-1", chunk=chunk)]
    state.apply(foreign)
    assert state.last_anomaly == "chunk for sequence 2 of another request"
    assert state.sequences[2].status is SequenceStatus.WAITING
    state.requests["req-2"].finish_reason = "stop"
    ended.sequences = [update(2, request_id="req-2", chunk=chunk)]
    state.apply(ended)
    assert state.last_anomaly == "request req-2 ran after its end"
    assert (state.sequences[2].num_computed_tokens, state.num_anomalies) == (0, 2)


@pytest.mark.parametrize("start_time", [100.9, 101.1])
@pytest.mark.parametrize("has_metadata", [True, False])
def test_batch_names_a_request_that_ended_in_flight(has_metadata: bool, start_time: float) -> None:
    """It is in the batch, and unchanged; one that ended before the step was scheduled is wrong."""
    checker = Checker()
    metrics = RequestMetrics(10.0, 100.5, 100.0, 100.5, 90.0, finished_time=101.0)
    ended = RequestFinished("req-1", 101.0, SequenceStatus.FINISHED_STOPPED, metrics)
    events: list[Event] = [arrival(1), step(0, delta("req-1", 1)), ended]
    late = step(1, delta("req-1", 1, computed=3), start_time=start_time)
    if not has_metadata:
        late.execute = None
        chunk = Chunk(num_tokens=1, num_computed_tokens=3, is_prompt=False)
        late.sequences = [update(1, request_id="req-1", chunk=chunk)]
    for event in events:
        checker.apply(event)
    before = checker.state.sequences[1].num_computed_tokens
    is_late = start_time > 101.0
    rules = {finding.rule for finding in checker.apply(late)}
    assert ("late-token" in rules, "unknown" in rules) == (is_late, False)
    assert [member.request_id for member in members(late)] == ["req-1"]
    state = checker.state
    assert state.num_anomalies == is_late
    assert state.requests["req-1"].num_scheduled_steps == 1
    assert state.sequences[1].num_computed_tokens == before
    assert state.sequences[1].status is SequenceStatus.FINISHED_STOPPED


def test_a_time_of_an_end_that_did_not_happen_changes_nothing() -> None:
    """The metrics of a running request name an end in the future; it goes on as any other."""
    state, announced = EngineState(), arrival(1)
    announced.metrics = RequestMetrics(10.0, 100.5, 100.0, 100.5, 90.0, finished_time=101.0)
    for event in (announced, step(0, delta("req-1", 1, computed=3), start_time=100.9)):
        state.apply(event)
    assert state.requests["req-1"].num_scheduled_steps == 1
    assert state.sequences[1].num_computed_tokens == 4
    assert state.sequences[1].status is SequenceStatus.RUNNING
    assert state.num_anomalies == 0


def test_metadata_is_found_by_request() -> None:
    whole, change = full("a", 1, chunk=3), delta("b", 2)
    batch = step(1, whole, change)
    assert (metadata_of(batch, "a"), metadata_of(batch, "b")) == (whole, change)
    assert (full_metadata_of(batch, "a"), full_metadata_of(batch, "b")) == (whole, None)
    assert metadata_of(batch, "c") is None


def test_block_moves_are_those_of_the_request_to_the_worker() -> None:
    batch = step(1)
    batch.execute = ExecuteModelRequest(
        [], blocks_to_swap_in=[(1, 2)], blocks_to_swap_out=[(3, 4)], blocks_to_copy=[(5, 6)]
    )
    assert block_moves(batch) == ([(1, 2)], [(3, 4)], [(5, 6)])


def _parts(batch: Step) -> dict[str, tuple[int, int, int]]:
    """The tokens and sequences of each request, added up over the members."""
    parts: dict[str, tuple[int, int, int]] = {}
    for member in members(batch):
        prefill, decode, number = parts.get(member.request_id, (0, 0, 0))
        prefill += member.num_tokens * member.is_prompt
        decode += member.num_tokens * (not member.is_prompt)
        parts[member.request_id] = prefill, decode, number + 1
    return parts


def _tokens(batch: Step) -> dict[str, tuple[int, int, int]]:
    return {
        name: (own.prefill, own.decode, own.num_sequences)
        for name, own in request_tokens(batch).items()
    }


def test_tokens_of_requests_are_sums_over_members() -> None:
    """All tokens of all sequences count, which are several in a prefill after a preemption."""
    several = set()
    for seed in range(8):
        for event in RandomEngine(seed, 60, num_blocks=24):
            if isinstance(event, Step):
                assert _tokens(event) == _parts(event)
                several |= {(p > 0, d > 0) for p, d, number in _parts(event).values() if number > 1}
    assert several >= {(True, False), (False, True)}


@pytest.mark.parametrize("num_drafted", [0, 3])
@pytest.mark.parametrize(
    ("chunk", "computed", "found", "left"), [(1, 20, 16, 1), (17, 0, 16, 1), (1, 0, 16, -15)]
)
def test_tokens_of_a_decode_leave_out_those_found_in_the_prefix_cache(
    chunk: int, computed: int, found: int, left: int, num_drafted: int
) -> None:
    """An engine may repeat what an admission found, or admit a request with one token left."""
    change = delta("req-1", 1, computed=computed, token_chunk_size=chunk)
    batch = step(0, change, delta("req-2", 2))
    batch.sequences = [update(1, cached=found, drafted=num_drafted)]
    assert _tokens(batch) == _parts(batch)
    assert _tokens(batch)["req-1"] == (0, max(left + num_drafted, 0), 1)
